"""Parts of the Kubernetes adapters: one connection with our errors, server-side apply, watching, and Events."""
