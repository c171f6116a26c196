"""The four handlers. Each parses, hands over, and lets exceptions out: a returned error is success to EventBridge."""
