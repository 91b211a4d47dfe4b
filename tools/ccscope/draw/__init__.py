"""Drawing over time, for ccscope and for airlab: one implementation.

``curves`` has what is computed from rows (numpy only), ``flowview`` what one flow of a recording
can show, ``look`` colours and styles, ``panels`` and ``timeline`` the matplotlib part.
"""
