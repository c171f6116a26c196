"""The same engine on Amazon ECS: DynamoDB for state, ECS and SSM for nodes, SNS for messages."""
