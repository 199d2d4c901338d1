// Says what this Node sees, once for every line of its input: CPUs, total memory, what libuv takes for a thread pool, V8's largest heap.
const os = require("os");
const v8 = require("v8");
require("readline")
  .createInterface({ input: process.stdin })
  .on("line", () => console.log(os.cpus().length, os.totalmem(), os.availableParallelism?.() ?? 0, v8.getHeapStatistics().heap_size_limit));
