"""Commands that are modules of their own: ``add(commands)`` adds a command to the parser.

What they need beyond the standard library they import in their handlers, so that the recorder
runs where numpy, pyarrow and matplotlib are not.
"""
