"""Pictures, tables and sentences for people, made from values; nothing here reads the machine.

`machine` draws the machine: `nesting` arranges sockets, NUMA nodes, dies and caches as a tree, and
`machine` draws the tree as boxes with a cell for each core, or, if that is too tall, as boxes with
CPU lists, then as lines. For a node it adds the owner of each CPU and a line for each
pod; `topolet topology` prints it. `devices` lists devices as a table or a tree.

The page and `topolet top` show the node live: `live` makes one value of machine, pools, devices,
pods and problems, and `history` keeps the last changes from the audit trail, and writes a record
of the trail as a sentence. `top` draws the screen of `topolet top` with the styled lines of
`terminal`.

`explanation` and `fragmentation` write the scheduler's results as text. `format` has numbers,
tables and boxes, and prints to any standard output."""
