module topolet.example/tests/tools/go-nvml

go 1.24

require github.com/NVIDIA/go-nvml v0.13.0-1
