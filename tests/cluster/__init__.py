"""A real Kubernetes for tests: built from the Go modules once, started for a session, gone at its end."""
