// The same as sandbox.py: node sandbox.js PATH MIB HOT
const [path, mib, hot] = process.argv.slice(2);
const page = require("crypto").randomBytes(4096);
const held = Array.from({ length: Number(mib) }, () => Buffer.alloc(1 << 20, page));

require("net")
  .createServer((peer) => {
    peer.on("error", () => {});
    peer.once("data", (data) => {
      let total = 0;
      for (const block of held.slice(0, Number(hot)))
        for (let at = 0; at < block.length; at += 4096) total += block[at] = (block[at] + 1) % 256;
      peer.end(JSON.stringify({ id: JSON.parse(data).id, total }));
    });
  })
  .listen(path, () => console.log("ready"));
