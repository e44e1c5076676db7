"""What any process of the server needs from the kernel. Imports nothing of the project but the root nouns."""
