// Loads a folder with @huggingface/transformers and prints what it computes, as JSON.
// echo '{"task": ..., "texts": [...], "sound": [...], "tokens": 20}' | node transformers_js.cjs FOLDER
const path = require("node:path");
const library = require("@huggingface/transformers");

const folder = path.resolve(process.argv[2]);
const { task, texts, sound, tokens } = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
library.env.allowRemoteModels = false;
library.env.localModelPath = path.dirname(folder);
const name = path.basename(folder);
const greedy = { max_new_tokens: tokens, do_sample: false };

const numbers = (tensor) => Array.from(tensor.data, Number);

async function features() {
  const run = await library.pipeline(task, name);
  return (await run(texts, { pooling: "mean", normalize: true })).tolist();
}

async function classes() {
  const run = await library.pipeline(task, name);
  return run(texts, { top_k: null });
}

async function continuations() {
  const tokenizer = await library.AutoTokenizer.from_pretrained(name);
  const kind = task === "text-generation" ? "AutoModelForCausalLM" : "AutoModelForSeq2SeqLM";
  const model = await library[kind].from_pretrained(name);
  const results = [];
  for (const text of texts) {
    results.push(numbers(await model.generate({ ...tokenizer(text), ...greedy })));
  }
  return results;
}

async function transcript() {
  const processor = await library.AutoFeatureExtractor.from_pretrained(name);
  const model = await library.AutoModelForSpeechSeq2Seq.from_pretrained(name);
  const { input_features } = await processor(Float32Array.from(sound));
  const ids = await model.generate({ inputs: input_features, ...greedy });
  return { features: numbers(input_features), ids: numbers(ids) };
}

const runs = {
  "feature-extraction": features,
  "text-classification": classes,
  "text-generation": continuations,
  "text2text-generation": continuations,
  "automatic-speech-recognition": transcript,
};
runs[task]().then((result) => console.log(JSON.stringify(result)));
