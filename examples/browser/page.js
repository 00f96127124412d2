// A sentence encoder and a language model of qtool, in onnxruntime-web's WebAssembly.
import { env, pipeline, AutoModelForCausalLM, AutoTokenizer, TextStreamer } from "./modules/@huggingface/transformers/dist/transformers.web.min.js";

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "models/";
env.backends.onnx.wasm.wasmPaths = new URL("modules/onnxruntime-web/dist/", import.meta.url).href;
env.backends.onnx.wasm.numThreads = 1;

const TOKENS = 60;
const once = (load) => {
  let loading;
  return () => (loading ??= load());
};
const encoder = once(() => pipeline("feature-extraction", "sentence_encoder", { device: "wasm" }));
const writer = once(async () => [
  await AutoTokenizer.from_pretrained("language_model"),
  await AutoModelForCausalLM.from_pretrained("language_model", { device: "wasm" }),
]);

/** Unit vectors of texts; one text at a time, since padding would change ranges. */
export async function embed(texts) {
  const run = await encoder();
  const vectors = [];
  for (const text of texts) {
    vectors.push((await run(text, { pooling: "mean", normalize: true })).tolist()[0]);
  }
  return vectors;
}

/** The most likely tokens behind a prompt, and how many came per second. */
export async function write(prompt, onText = () => {}) {
  const [tokenizer, model] = await writer();
  const inputs = tokenizer(prompt);
  const times = [];
  const streamer = new TextStreamer(tokenizer, {
    skip_prompt: true,
    callback_function: onText,
    token_callback_function: () => times.push(performance.now()),
  });
  const ids = await model.generate({ ...inputs, max_new_tokens: TOKENS, do_sample: false, streamer });
  const seconds = (times.at(-1) - times[0]) / 1000;
  const count = inputs.input_ids.dims[1];
  return { tokens: Array.from(ids.data, Number).slice(count), perSecond: (times.length - 1) / seconds };
}

const show = (id, text) => (document.getElementById(id).textContent = text);

document.getElementById("compare").onclick = async () => {
  const texts = document.getElementById("sentences").value.split("\n").filter(Boolean);
  await encoder();
  const start = performance.now();
  const [first, ...others] = await embed(texts);
  const time = (performance.now() - start) / texts.length;
  const dot = (vector) => vector.reduce((sum, value, i) => sum + value * first[i], 0);
  show("similarities", others.map((vector, i) => `${dot(vector).toFixed(3)}  ${texts[i + 1]}`).join("\n"));
  show("encoder-figures", `${time.toFixed(1)} ms a sentence`);
};

document.getElementById("write").onclick = async () => {
  let text = "";
  const result = await write(document.getElementById("prompt").value, (piece) => show("text", (text += piece)));
  show("writer-figures", `${result.tokens.length} tokens, ${result.perSecond.toFixed(1)} tokens per second`);
};
