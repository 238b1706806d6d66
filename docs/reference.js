// The search of the reference (docs/reference.py). names.js has INDEX: [name, place, PyTorch's names, a line about it, the other
// words of its contract], for documents, headers and names; and SAME: words that people type for the same thing.

// A word without its ending, so that "clipping" finds "clip": the same for what is typed and what is there.
function stem(word) {
  const short = word.replace(/(ations?|ating|ates?|ized?|izing|izers?|ings?|ed|es|s)$/, "");
  return short.length < 3 ? word : short.replace(/([^aeiouls])\1$/, "$1").replace(/[ei]$/, "");
}
const split = text => text.toLowerCase().match(/[a-z]+[0-9]*|[0-9]+/g) || [];
// "DataLoader" is data, loader and dataloader.
const stems = text => split(text + " " + text.replace(/([a-z])([A-Z])/g, "$1 $2")).map(stem);

const WEIGHTS = [8, 5, 3, 1];  // of a word in a name, in PyTorch's names, …
const SECONDARY = /_(defaults|options|init|free|with)$|^TN_/;  // found by these words, but seldom what is meant
const same = new Map(), among = new Map();  // word -> words for the same; word -> in how many entries
for (const group of SAME) for (const word of split(group)) same.set(word, stems(group));
const entries = INDEX.map(entry => {
  const name = stems(entry[0].replace(/^(tn_|docs.)|[.](md|h)$/gi, "")), weights = new Map();
  [name, ...entry.slice(2).map(stems)].forEach((words, i) => words.forEach(w => weights.has(w) || weights.set(w, WEIGHTS[i])));
  for (const word of weights.keys()) among.set(word, (among.get(word) || 0) + 1);
  const less = SECONDARY.test(entry[0]) || entry[1].startsWith("sys_") ? 1 : 0;
  return {entry, name: new Set(name), weights, less, page: /[.](md|h)$/.test(entry[0])};
});

// How well an entry answers. Rare words count more, and one that is missing counts against it; a name is best if all of it was
// typed, in other words perhaps.
function score(e, words) {
  let sum = 0, all = 0, there = 0;
  const met = new Set();
  for (const word of words) {
    const others = [stem(word), ...(same.get(word) || [])];
    const rare = Math.log(2 * entries.length / (Math.max(...others.map(w => among.get(w) || 0)) + 1));
    let best = -8;
    for (const other of others) {
      if (e.weights.has(other)) best = Math.max(best, e.weights.get(other));
      if (e.name.has(other)) met.add(other);
    }
    all += rare;
    sum += rare * best;
    there += best > 0;
  }
  if (!there) return -Infinity;
  return sum / all + (e.page ? 0 : 5 * met.size / e.name.size * there / words.length) - e.name.size / 10 - e.less;
}
function search(text) {
  const words = [...new Set(split(text))], joined = text.toLowerCase().replace(/[\s_]+/g, "");
  const exactly = e => [joined, "tn" + joined].includes(e.entry[0].toLowerCase().replace(/_/g, "")) ? 1000 : 0;
  return entries.map(e => [exactly(e) + score(e, words), e.entry]).filter(h => h[0] > -Infinity).sort((a, b) => b[0] - a[0]).slice(0, 60).map(h => h[1]);
}

// ---- The page: not there where docs/reference.py tests the search.
const box = document.getElementById("search"), found = document.getElementById("found"), page = document.getElementById("page");
function show() {
  page.hidden = split(box.value).length > 0;
  found.replaceChildren();
  if (!page.hidden) return;
  const hits = search(box.value);
  for (const e of hits) {
    const li = document.createElement("li"), a = document.createElement("a"), span = document.createElement("span");
    a.href = e[1]; a.textContent = e[0]; a.onclick = () => { box.value = ""; show(); };
    span.textContent = (e[2] ? "PyTorch: " + e[2] + " · " : "") + e[3];
    li.append(a, span); found.append(li);
  }
  if (!hits.length) found.textContent = "Nothing by that name.";
}
box.oninput = show;
box.value = new URLSearchParams(location.search).get("q") || "";  // index.html?q=relu
show();
box.onkeydown = e => { if (e.key === "Enter" && found.querySelector("a")) found.querySelector("a").click(); if (e.key === "Escape") { box.value = ""; show(); } };
document.onkeydown = e => { if (e.key === "/" && document.activeElement !== box) { e.preventDefault(); box.focus(); } };
