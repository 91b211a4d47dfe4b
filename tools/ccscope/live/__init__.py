"""What is seen while it happens: feeds, the model that views share, the views.

A feed (``feeds``) gives tables of the recording schema in small pieces; the model (``model``) keeps
a bounded part of them; ``terminal``, ``web`` and ``metrics`` show it.
"""
