"""Parts of the Kafka adapter: how library errors become ours, and how each library is given its security."""
