"""The subcommands of `topolet`: a thin module for each, found by the subcommand's name, and one
(`processes`) for those that run a process.

`agent.__main__` imports a subcommand's module only when it is called; `options` reads settings from
a TOML file and flags. A module loads its settings, starts its process and maps errors to exit
codes."""
