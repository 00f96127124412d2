// Answers calls of session.py in onnxruntime-web, on one thread of WebAssembly.
//
//     node serve.mjs FOLDER_OF_ONNXRUNTIME_WEB
//
// A message is two lengths (uint64), JSON, and the bytes of its tensors one after another, which
// the JSON describes in "tensors": [[type, shape, bytes], ...].

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const TYPES = {
  float32: ["float32", Float32Array],
  float64: ["float64", Float64Array],
  float16: ["float16", Uint16Array],
  int64: ["int64", BigInt64Array],
  uint64: ["uint64", BigUint64Array],
  int32: ["int32", Int32Array],
  uint32: ["uint32", Uint32Array],
  int16: ["int16", Int16Array],
  uint16: ["uint16", Uint16Array],
  int8: ["int8", Int8Array],
  uint8: ["uint8", Uint8Array],
  bool: ["bool", Uint8Array],
};
const [INPUT, OUTPUT] = [0, 1];

/** The next bytes of standard input; null at its end. */
function read(count) {
  const bytes = Buffer.alloc(count);
  for (let done = 0; done < count; ) {
    const more = fs.readSync(INPUT, bytes, done, count - done);
    if (more === 0) return null;
    done += more;
  }
  return bytes;
}

function write(bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(OUTPUT, bytes, done);
}

function receive() {
  const lengths = read(16);
  if (lengths === null) return null;
  const message = JSON.parse(read(Number(lengths.readBigUInt64LE(0))).toString("utf-8"));
  const payload = read(Number(lengths.readBigUInt64LE(8)));
  return { ...message, payload };
}

function send(message, parts = []) {
  const text = Buffer.from(JSON.stringify(message));
  const lengths = Buffer.alloc(16);
  lengths.writeBigUInt64LE(BigInt(text.length), 0);
  lengths.writeBigUInt64LE(BigInt(parts.reduce((sum, p) => sum + p.length, 0)), 8);
  [lengths, text, ...parts].forEach(write);
}

/** Input name -> tensor, for the tensors of a message, which are in the order of the inputs. */
function feeds(ort, session, { tensors, payload }) {
  let start = payload.byteOffset;
  const inputs = tensors.map(([code, shape, length]) => {
    const [type, kind] = TYPES[code];
    const data = new kind(payload.buffer.slice(start, start + length));
    start += length;
    return new ort.Tensor(type, data, shape);
  });
  return Object.fromEntries(session.inputNames.map((name, i) => [name, inputs[i]]));
}

/** The message that describes all outputs of a run, and their bytes. */
function results(session, values) {
  const tensors = [], parts = [];
  for (const name of session.outputNames) {
    const { type, dims, data } = values[name];
    tensors.push([type, dims, data.byteLength]);
    parts.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  }
  return [{ tensors }, parts];
}

const sessions = new Map();
let newest = 0; // number of the newest session

async function release(id) {
  await sessions.get(id)?.release();
  sessions.delete(id);
}

const calls = {
  async open(ort, { model, external }) {
    const externalData = external.map(([name, file]) => ({
      path: name,
      data: new Uint8Array(fs.readFileSync(file)),
    }));
    const bytes = new Uint8Array(fs.readFileSync(model));
    const options = { executionProviders: ["wasm"], externalData };
    sessions.set(++newest, await ort.InferenceSession.create(bytes, options));
    return [{ id: newest }];
  },
  async run(ort, message) {
    const session = sessions.get(message.id);
    return results(session, await session.run(feeds(ort, session, message)));
  },
  // Seconds of CPU time: other processes on the machine are not counted. The engine compiles what
  // runs often once more, in the first runs, for which "warm" has seconds.
  async time(ort, message) {
    const session = sessions.get(message.id);
    const inputs = feeds(ort, session, message);
    const end = performance.now() + 1000 * message.warm;
    while (performance.now() < end) await session.run(inputs);
    const start = process.cpuUsage();
    for (let i = 0; i < message.times; i++) await session.run(inputs);
    const { user, system } = process.cpuUsage(start);
    return [{ seconds: (user + system) / 1e6 }];
  },
};

for (const name of ["log", "info", "warn", "error", "debug"]) console[name] = () => {};
process.on("SIGINT", () => {}); // a terminal sends it to all processes; the parent decides
const [folder] = process.argv.slice(2);
const entry = createRequire(path.join(folder, "package.json")).resolve("onnxruntime-web");
const ort = await import(pathToFileURL(entry).href).then((m) => m.default ?? m);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
for (let message; (message = receive()) !== null; ) {
  try {
    for (const id of message.unused) await release(id);
    send(...(await calls[message.name](ort, message)));
  } catch (error) {
    send({ failed: String(error?.message ?? error).replace(/\s+/g, " ") });
  }
}
process.exit(0);
