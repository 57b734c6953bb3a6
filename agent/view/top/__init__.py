"""The screen of `topolet top`, as pure functions: `values` is what it shows; `screen_state` is
what the person selected by keys; `lists`, `cells` and `details` draw the parts of a `frame`.
"""
