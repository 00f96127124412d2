// Runs ONNX models on saved inputs in onnxruntime-web: run_onnx.py for WebAssembly.
//
//     node run_onnx.mjs JOB.json FOLDER_OF_ONNXRUNTIME_WEB
//
// A run may name files with weights in "external": [[name in the model, file], ...].

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const TYPES = {
  "<f4": ["float32", Float32Array],
  "<f8": ["float64", Float64Array],
  "<f2": ["float16", Uint16Array],
  "<i8": ["int64", BigInt64Array],
  "<u8": ["uint64", BigUint64Array],
  "<i4": ["int32", Int32Array],
  "<u4": ["uint32", Uint32Array],
  "<i2": ["int16", Int16Array],
  "<u2": ["uint16", Uint16Array],
  "|i1": ["int8", Int8Array],
  "|u1": ["uint8", Uint8Array],
  "|b1": ["bool", Uint8Array],
};

/** The array in a .npy file (version 1, C order) as a tensor. */
function load(ort, file) {
  const bytes = fs.readFileSync(file);
  const length = bytes.readUInt16LE(8);
  const header = bytes.toString("latin1", 10, 10 + length);
  const code = header.match(/'descr': '([^']*)'/)[1];
  const dims = header.match(/'shape': \(([^)]*)\)/)[1];
  const shape = dims.split(",").map((s) => s.trim()).filter(Boolean).map(Number);
  if (!(code in TYPES) || header.includes("'fortran_order': True")) {
    throw new Error(`${file}: arrays of ${code} are not read here`);
  }
  const [type, kind] = TYPES[code];
  const start = bytes.byteOffset + 10 + length;
  const data = new kind(bytes.buffer.slice(start, bytes.byteOffset + bytes.length));
  return new ort.Tensor(type, data, shape);
}

/** A tensor as a .npy file. */
function save(file, tensor) {
  const code = Object.keys(TYPES).find((c) => TYPES[c][0] === tensor.type);
  if (code === undefined) throw new Error(`an output is ${tensor.type}, which is not written here`);
  const dims = tensor.dims.join(", ") + (tensor.dims.length === 1 ? "," : "");
  const text = `{'descr': '${code}', 'fortran_order': False, 'shape': (${dims}), }`;
  const header = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const head = Buffer.alloc(10);
  head.write("\x93NUMPY\x01\x00", "latin1");
  head.writeUInt16LE(header.length, 8);
  const { buffer, byteOffset, byteLength } = tensor.data;
  fs.writeFileSync(
    file, Buffer.concat([head, Buffer.from(header), Buffer.from(buffer, byteOffset, byteLength)])
  );
}

async function run(ort, job) {
  const external = (job.external ?? []).map(([name, file]) => ({
    path: name,
    data: new Uint8Array(fs.readFileSync(file)),
  }));
  const options = { executionProviders: ["wasm"], externalData: external };
  const session = await ort.InferenceSession.create(
    new Uint8Array(fs.readFileSync(job.model)), options
  );
  for (let batch = 0; batch < job.batches; batch++) {
    const feeds = {};
    session.inputNames.forEach((name, i) => {
      feeds[name] = load(ort, path.join(job.inputs, `${batch}-${i}.npy`));
    });
    const found = await session.run(feeds);
    session.outputNames.forEach((name, i) => {
      save(path.join(job.outputs, `${batch}-${i}.npy`), found[name]);
    });
  }
  await session.release();
}

process.stdin.on("end", () => process.exit(1)).resume(); // the parent is gone
try {
  const [file, folder] = process.argv.slice(2);
  const entry = createRequire(path.join(folder, "package.json")).resolve("onnxruntime-web");
  const ort = await import(pathToFileURL(entry).href).then((m) => m.default ?? m);
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "fatal";
  for (const job of JSON.parse(fs.readFileSync(file, "utf-8")).runs) await run(ort, job);
  process.exit(0);
} catch (error) {
  console.error(String(error?.message ?? error).replace(/\s+/g, " "));
  process.exit(1);
}
