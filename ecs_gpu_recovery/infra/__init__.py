"""The deployment, one construct per concern. `EcsGpuRecoveryStack` puts them together."""
