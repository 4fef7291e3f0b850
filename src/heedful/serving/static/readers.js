"use strict";
// The part of the page for models that read: one or two texts, what the model says about them, and which words decided.
// Loaded before page.js, whose helpers it uses. What a model says is shown as text, never as HTML.
const READER_WORDS = {
  en: {
    prediction: "Prediction", input_text: "Text", input_first: "First text", input_second: "Second text",
    input_question: "Question", input_context: "Text that holds the answer", noAnswer: "The text holds no answer.",
    maskHint: "Write <mask> where the model should guess a word.", guesses: "Guesses for mask {number}",
    vector: "A vector of {count} numbers, of length {length}:", others: "and {count} more", score: "Score",
    decisive: "Which words decided", view: "View", gradient: "gradient × embedding", occlusion: "drop when masked",
    decisiveHint: "How much each word speaks for “{target}” ({value}): blue for it, red against it. The gradient is a first-order estimate on the logit; the drop is how much is lost if the word is replaced by {replacement}.",
    scoreHint: "How much each word raises the score ({value}): blue raises it, red lowers it. The gradient is a first-order estimate; the drop is how much is lost if the word is replaced by {replacement}.",
    word: "Word", notOccluded: "not computed", tagLegend: "Tags", noTags: "No word was tagged.",
    windows: "The text was read in {count} windows. Tokens and attention are those of the first.",
  },
  zh: {
    prediction: "预测", input_text: "文本", input_first: "第一段文本", input_second: "第二段文本", input_question: "问题",
    input_context: "含有答案的文本", noAnswer: "文本中没有答案。", maskHint: "在要模型猜词的地方写 <mask>。",
    guesses: "第 {number} 个空的猜测", vector: "{count} 维向量，长度 {length}：", others: "还有 {count} 个", score: "分数",
    decisive: "哪些词起决定作用", view: "视图", gradient: "梯度 × 词嵌入", occlusion: "遮住后的下降",
    decisiveHint: "每个词对“{target}”（{value}）的作用：蓝色支持，红色反对。梯度是对 logit 的一阶估计；下降是把该词换成 {replacement} 后减少的量。",
    scoreHint: "每个词对分数（{value}）的作用：蓝色提高，红色降低。梯度是一阶估计；下降是把该词换成 {replacement} 后减少的量。",
    word: "词", notOccluded: "未计算", tagLegend: "标签", noTags: "没有词被标注。",
    windows: "文本分为 {count} 个窗口阅读。词元和注意力来自第一个窗口。",
  },
};
const MOST_SHOWN = 20; // labels
const isReader = () => Boolean(model()) && model().kind === "reader";
const inputs = () => (isReader() ? model().inputs : []);

// The texts in the boxes, as one line; "" if some box is empty.
function readerLine() {
  const texts = ["first-text", "second-text"].slice(0, inputs().length).map((id) => $(id).value.trim().replace(/\t/g, " "));
  return texts.every(Boolean) ? texts.join("\t") : "";
}

const boxes = () => `${$("first-text").value}\t${$("second-text").value}`;

function setReaderLine(line) {
  const [first, ...others] = inputs().length > 1 ? line.split("\t") : [line];
  $("first-text").value = first || "";
  $("second-text").value = others.join(" ");
}

async function readTexts() {
  const line = readerLine(), turn = ++state.turn, asked = model();
  follow();
  state.prediction = state.data = null;
  if (!line) {
    problem("");
    showAll();
    return;
  }
  $("inside").setAttribute("aria-busy", "true");
  try {
    const answer = await ask("api/predict", { inputs: [line], model: asked.name });
    if (turn !== state.turn) return;
    state.prediction = { line, ...answer.predictions[0] };
    problem("");
    showPrediction();
    const data = asked.inspects ? await ask("api/inspect", { text: line, model: asked.name }) : null;
    if (turn !== state.turn) return;
    state.data = data;
  } catch (error) {
    if (turn !== state.turn) return;
    problem(error.message);
    if (!state.prediction) showPrediction();
  }
  showInside();
  $("inside").setAttribute("aria-busy", "false");
}

function showReader() {
  const names = inputs(), named = (name) => (WORDS[state.language][`input_${name}`] ? say(`input_${name}`) : name);
  $("first-label").textContent = named(names[0] || "text");
  $("second-label").textContent = named(names[1] || "second");
  $("second-field").hidden = names.length < 2;
  $("mask-hint").hidden = !(isReader() && model().task === "masked_lm");
  showPrediction();
}

// By what the prediction holds, not by the task's name: a task of one's own is shown as well.
function showPrediction() {
  const found = state.prediction, place = $("prediction");
  place.replaceChildren();
  if (!found) return;
  if (found.words && found.tags) place.append(...taggedWords(found));
  else if (found.answer !== undefined) place.append(...answered(found));
  else if (found.masks) place.append(...guessed(found));
  else if (found.embedding) place.append(...vector(found.embedding));
  else if (found.scores) place.append(bars(Object.entries(found.scores), found.labels || [found.label]));
  else if (found.score !== undefined) place.append(make("div", found.score.toFixed(3), { class: "number" }));
  else place.append(make("div", found.text, { class: "words large" }));
}

// A horizontal bar for each name, as long as its number (from 0 to 1).
function bars(pairs, chosen = []) {
  const list = make("ol", "", { class: "meters" });
  for (const [name, value] of pairs.slice(0, MOST_SHOWN)) {
    const line = make("li", "", chosen.includes(name) ? { "aria-current": "true" } : {}), meter = make("span", "", { class: "meter" });
    meter.append(make("i"));
    meter.firstChild.style.width = `${(100 * Math.max(0, Math.min(1, value))).toFixed(1)}%`;
    line.append(make("span", name, { class: "name", title: name }), meter, make("span", `${(100 * value).toFixed(1)} %`, { class: "share" }));
    list.append(line);
  }
  if (pairs.length > MOST_SHOWN) list.append(make("li", say("others", { count: pairs.length - MOST_SHOWN }), { class: "hint" }));
  return list;
}

// A tag keeps its colour as long as the page is open. Neighbouring hues are far apart: 137.5 degrees, the golden angle.
const hues = new Map();
const typeOf = (tag) => tag.replace(/^[BIESLU]-/, "");
function hue(type) {
  if (!hues.has(type)) hues.set(type, (210 + hues.size * 137.5) % 360);
  return `hsla(${hues.get(type)}, 75%, 55%, .38)`;
}

function taggedWords({ words, tags }) {
  const row = make("div", "", { class: "words large tagged" }), types = [];
  words.forEach((word, place) => {
    const tag = tags[place], span = make("span", word, { title: tag });
    if (tag && tag !== "O") {
      if (!types.includes(typeOf(tag))) types.push(typeOf(tag));
      span.style.background = hue(typeOf(tag));
    }
    row.append(span, gap(word));
  });
  const legend = make("ul", "", { class: "tags", "aria-label": say("tagLegend") });
  for (const type of types) {
    const line = make("li", type);
    line.style.background = hue(type);
    legend.append(line);
  }
  return [row, types.length ? legend : make("p", say("noTags"), { class: "hint" })];
}

// The answer, marked where it stands. Positions count characters; JavaScript's strings count halves of some.
function answered({ line, answer, start, end, score, alternatives }) {
  const letters = [...line.split("\t").slice(1).join("\t")], row = make("div", "", { class: "words large context" });
  const fits = answer && Number.isInteger(start) && Number.isInteger(end) && start < end && end <= letters.length;
  if (fits) row.append(letters.slice(0, start).join(""), make("mark", letters.slice(start, end).join("")), letters.slice(end).join(""));
  else row.append(letters.join(""));
  const parts = [make("div", answer || say("noAnswer"), { class: "number" }), row];
  const all = [[answer || say("noAnswer"), score], ...(alternatives || []).map((one) => [one.text || one.answer || say("noAnswer"), one.score])];
  const known = all.filter(([, value]) => typeof value === "number");
  if (known.length) parts.push(make("div", say("alternatives"), { class: "label" }), bars(known, [answer]));
  return parts;
}

function guessed({ text, masks }) {
  return [make("div", text, { class: "words large" }), ...masks.flatMap((guesses, place) => [
    make("div", say("guesses", { number: place + 1 }), { class: "label" }), bars(guesses.map((one) => [one.text, one.score])),
  ])];
}

function vector(numbers) {
  const length = Math.sqrt(numbers.reduce((sum, one) => sum + one * one, 0)).toFixed(3);
  const shown = numbers.slice(0, 12).map((one) => one.toFixed(3)).join(", ");
  return [make("p", say("vector", { count: numbers.length, length }), { class: "hint" }), make("code", `[${shown}${numbers.length > 12 ? ", …" : ""}]`)];
}

// --- which words decided

function showDecisive() {
  const found = state.data.decisive, view = $("view").value || "gradient";
  fill($("view"), ["gradient", "occlusion"].map((name) => [name, say(name)]), view);
  const values = { target: found.target, value: found.value.toFixed(3), replacement: found.replacement };
  $("decisive-hint").textContent = say(found.target === "score" && !("scores" in (state.prediction || {})) ? "scoreHint" : "decisiveHint", values);
  const most = Math.max(1e-9, ...found.words.map((word) => Math.abs(word[view] || 0)));
  const shade = (value) => `rgba(var(${value < 0 ? "--red" : "--blue"}), ${(0.6 * Math.abs(value || 0) / most).toFixed(3)})`;
  const sign = (value) => (Math.abs(value) < 0.0005 ? "" : value < 0 ? "−" : "+");
  const number = (value) => (value === null ? say("notOccluded") : `${sign(value)}${Math.abs(value).toFixed(3)}`);
  const rows = inputs().map(() => make("div", "", { class: "words large" }));
  found.words.forEach((word) => {
    const span = make("span", word.text, { title: number(word[view]), tabindex: 0 });
    span.style.background = shade(word[view]);
    rows[word.input].append(span, gap(word.text));
  });
  $("decisive-words").replaceChildren(...rows);
  const table = make("table"), head = make("tr");
  for (const name of ["word", "gradient", "occlusion"]) head.append(make("th", say(name), { scope: "col" }));
  table.append(head);
  for (const word of [...found.words].sort((one, other) => Math.abs(other[view] || 0) - Math.abs(one[view] || 0))) {
    const line = make("tr");
    line.append(make("td", word.text), make("td", number(word.gradient)), make("td", number(word.occlusion)));
    table.append(line);
  }
  $("decisive-table").replaceChildren(table);
}
