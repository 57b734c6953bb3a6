// Lets the compiler accept a function without a body: main.go takes it from another package.
