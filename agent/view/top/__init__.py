"""The screen of `topolet top`, as pure functions: `values` is what it shows and `looking` what the
person chose to see, which keys change; `lists`, `cells` and `details` draw the parts of a `frame`.
"""
