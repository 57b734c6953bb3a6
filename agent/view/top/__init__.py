"""The screen of `topolet top`, as pure functions.

`values` has the state of the node that the screen shows. `screen_state` has the state of the screen
(page, selection, filter, sorting), and `pressed` computes the next state from a key. `frame` draws
both as exactly as many lines as the terminal has: it gives each pane (CPUs, pools, pods, devices,
changes) a number of lines. `cells` draws the CPUs, `lists` the lists, and `details` an opened pod
or device, and the help.
"""
