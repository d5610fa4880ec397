"""The command `tahr`: one file per verb, the chat, and where settings come from."""
