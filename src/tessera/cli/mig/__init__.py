"""`tessera mig`: one file or folder per command, and what they share.

`sources` reads what a person names, `tiles` draws cards; `output` says to people what a command found or did. What belongs here:
options, texts, tables, colours. What a layout is, whether it fits and how nodes get it is decided in `core.mig`, `core.planning`,
`inventory` and `rollout`.
"""
