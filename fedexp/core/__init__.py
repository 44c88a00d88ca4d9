"""The core of a round: client, server, the messages between them, and the contract of a part."""
