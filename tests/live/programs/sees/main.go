// Command sees prints GOMAXPROCS once for every line of its input.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

func main() {
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		fmt.Println(runtime.GOMAXPROCS(0))
	}
}
