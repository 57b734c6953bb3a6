"""The screen of `topolet top`, as pure functions.

`values` has the state of the node that the screen shows and of the screen itself (page, selection,
filter, sorting); its `pressed` computes the next state from a key. `frame` draws
both as exactly as many lines as the terminal has: it gives each pane (CPUs, pools, pods, devices,
changes) a number of lines, or shows an opened pod or device, or the help. `cells` draws the CPUs,
and `lists` the lists.
"""
