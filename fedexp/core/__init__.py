"""The round's vocabulary: client, server, what they send each other, and the contract of a part."""
