"""Parts of the folder registry: what files say (`documents`), and what the registry keeps (`status_files`)."""
