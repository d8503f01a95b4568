"""ResourceSlices, DeviceClasses and claims as core values, and the CEL expressions in them.

What belongs here: reading the objects into core values (`objects`), with what devices have
alike kept once (`kinds`), what an expression looks at (`names`, from the syntax tree that `syntax.proto` describes), and
evaluating it (`selectors`). What does not: which node offers what, which is `core.dra`.
"""
