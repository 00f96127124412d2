// A sentence encoder and a language model of qtool, in WebAssembly on one thread.
import { env, pipeline, AutoModelForCausalLM, AutoTokenizer, TextStreamer } from "./modules/@huggingface/transformers/dist/transformers.web.min.js";

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "models/";
env.backends.onnx.wasm.wasmPaths = new URL("modules/onnxruntime-web/dist/", import.meta.url).href;
env.backends.onnx.wasm.numThreads = 1;

const TOKENS = 60;
const device = "wasm";
const once = (load) => {
  let loading;
  return () => (loading ??= load());
};
const encoder = once(() => pipeline("feature-extraction", "sentence_encoder", { device }));
const writer = once(async () => [
  await AutoTokenizer.from_pretrained("language_model"),
  await AutoModelForCausalLM.from_pretrained("language_model", { device }),
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

const at = (id) => document.getElementById(id);
const show = (id, text) => (at(id).textContent = text);

/** Runs an action of a button, which is disabled meanwhile; an error is shown next to it. */
function act(button, figures, action) {
  at(button).onclick = async () => {
    at(button).disabled = true;
    at(figures).classList.remove("failed");
    try {
      await action();
    } catch (error) {
      show(figures, `It does not run: ${error.message}`);
      at(figures).classList.add("failed");
    } finally {
      at(button).disabled = false;
    }
  };
}

function row(similarity, text) {
  const line = document.createElement("tr");
  const [number, sentence] = [line.insertCell(), line.insertCell()];
  number.textContent = similarity.toFixed(3).replace("-", "\u2212");
  sentence.textContent = text;
  const bar = document.createElement("meter");
  bar.value = Math.max(0, similarity);
  bar.setAttribute("aria-hidden", "true");
  sentence.append(bar);
  return line;
}

act("compare", "encoder-figures", async () => {
  const texts = at("sentences").value.split("\n").filter((text) => text.trim());
  show("encoder-figures", "Loading the model \u2026");
  await embed(texts); // the engine compiles what runs often once more
  const start = performance.now();
  const [first, ...others] = await embed(texts);
  const time = (performance.now() - start) / texts.length;
  const dot = (vector) => vector.reduce((sum, value, i) => sum + value * first[i], 0);
  at("similarities").replaceChildren(...others.map((vector, i) => row(dot(vector), texts[i + 1])));
  show("encoder-figures", `${time.toFixed(1)} ms per sentence`);
});

act("write", "writer-figures", async () => {
  const prompt = at("prompt").value;
  let text = "";
  show("text", "");
  show("given", prompt);
  show("writer-figures", "Loading the model \u2026");
  await writer();
  show("writer-figures", "Writing \u2026");
  const result = await write(prompt, (piece) => show("text", (text += piece)));
  show("writer-figures", `${result.tokens.length} tokens, ${result.perSecond.toFixed(1)} tokens per second`);
});
