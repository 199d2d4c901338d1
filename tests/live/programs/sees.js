// Says what this Node sees, once for every line of its input: CPUs, total memory, what libuv takes for a thread pool.
const os = require("os");
require("readline")
  .createInterface({ input: process.stdin })
  .on("line", () => console.log(os.cpus().length, os.totalmem(), os.availableParallelism?.() ?? 0));
