module sees

go 1.25
