// The search of the reference (docs/reference.py); INDEX is in names.js: [name, place, PyTorch's names, a line about it, its
// contract's other words].
const box = document.getElementById("search"), found = document.getElementById("found"), page = document.getElementById("page");
function rank(entry, words) {  // the lower the better; -1: no match
  const name = entry[0].toLowerCase(), other = (entry[0] + " " + entry[2] + " " + entry[3]).toLowerCase();
  if (!words.every(w => other.includes(w))) return words.every(w => other.includes(w) || entry[4].includes(w)) ? 4 : -1;
  if (words.some(w => name === w || name === "tn_" + w)) return 0;
  const near = words.every(w => name.includes(w)) ? name.length / 100 : 1;
  const torch = entry[2].toLowerCase().split(" ").some(n => words.includes(n) || words.includes(n.split(".").pop()));
  return near + (torch ? 1 : 2);
}
function show() {
  const words = box.value.toLowerCase().split(/\s+/).filter(w => w);
  page.hidden = words.length > 0;
  found.replaceChildren();
  if (!words.length) return;
  const hits = INDEX.map(e => [rank(e, words), e]).filter(h => h[0] >= 0).sort((a, b) => a[0] - b[0]).slice(0, 60);
  for (const [, e] of hits) {
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
