// Builds the dashboard into target/dashboard, and says how large it is: these bytes become part of the agent's binary.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, readdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = `${here}../target/dashboard`;

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  entryPoints: { app: `${here}src/main.ts` },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  legalComments: "inline",
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) await copyFile(`${here}${name}`, `${out}/${name}`);

let [raw, zipped] = [0, 0];
for (const name of (await readdir(out)).sort()) {
  const bytes = await readFile(`${out}/${name}`);
  raw += bytes.length;
  zipped += gzipSync(bytes).length;
}
console.log(`target/dashboard: ${raw} bytes, ${zipped} with gzip`);
