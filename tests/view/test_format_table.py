from agent.view import format


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text() -> None:
    rows = [("POD", "CPUS", ""), ("a/long-name", "0-3", "own"), ("b", "-", "")]
    assert format.table(rows, 80) == [
        "POD          CPUS",
        "a/long-name  0-3   own",
        "b            -",
    ]


def test_text_beyond_the_width_is_cut() -> None:
    assert format.table([("HEAD", "MORE"), ("x", "y")], 7) == ["HEAD  M", "x     y"]
