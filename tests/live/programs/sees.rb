# Says what this Ruby sees, once for every line of its input: processors.
require "etc"
$stdout.sync = true
$stdin.each_line { puts Etc.nprocessors }
