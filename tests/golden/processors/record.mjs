// Runs the model that `record.py make FOLDER` wrote in onnxruntime-web, and writes wasm.json and
// wasm.bin, which `record.py collect` reads. Needs the npm package onnxruntime-web (ORT: its path).
import fs from "node:fs";

const ort = await import(process.env.ORT ?? "onnxruntime-web");
ort.env.wasm.numThreads = 1;
const folder = process.argv[2];
const arrays = { float32: Float32Array, uint8: Uint8Array, int8: Int8Array, int32: Int32Array };
const data = fs.readFileSync(`${folder}/inputs.bin`);
const model = fs.readFileSync(`${folder}/model.onnx`);
const session = await ort.InferenceSession.create(new Uint8Array(model), {
  executionProviders: ["wasm"],
  graphOptimizationLevel: "disabled",
});
const feeds = {};
for (const [name, kind, shape, offset] of JSON.parse(fs.readFileSync(`${folder}/inputs.json`))) {
  if (!session.inputNames.includes(name)) continue;
  const count = shape.reduce((a, b) => a * b, 1);
  const start = data.byteOffset + offset;
  const bytes = data.buffer.slice(start, start + count * arrays[kind].BYTES_PER_ELEMENT);
  feeds[name] = new ort.Tensor(kind, new arrays[kind](bytes), shape);
}
const results = await session.run(feeds);
const table = [];
const parts = [];
let offset = 0;
for (const name of session.outputNames) {
  const found = results[name];
  const bytes = Buffer.from(found.data.buffer, found.data.byteOffset, found.data.byteLength);
  table.push([name, found.type, found.dims, offset]);
  const padding = (8 - (bytes.length % 8)) % 8;
  parts.push(bytes, Buffer.alloc(padding));
  offset += bytes.length + padding;
}
fs.writeFileSync(`${folder}/wasm.bin`, Buffer.concat(parts));
fs.writeFileSync(`${folder}/wasm.json`, JSON.stringify(table));
