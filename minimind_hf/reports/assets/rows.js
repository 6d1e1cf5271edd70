// SPDX-License-Identifier: Apache-2.0
// The completions of a run: searched, filtered by step, sorted; a few at a time, since there may be thousands.
"use strict";

const ROWS_AT_ONCE = 20;

function rows(data) {
  const root = document.getElementById("rows");
  const control = (name) => root.querySelector(`[name=${name}]`);
  const list = root.querySelector(".list"), told = root.querySelector("output"), more = root.querySelector(".more");
  const orders = {
    sampled: null,
    highest: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
    lowest: (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity),
    longest: (a, b) => b.tokens - a.tokens,
    shortest: (a, b) => a.tokens - b.tokens,
  };
  let found = [], shown = 0;

  function choose() {
    const words = control("words").value.toLowerCase();
    const step = control("step").value, run = control("run")?.value ?? "";
    found = data.filter((row) =>
      (!step || row.step === Number(step)) && (!run || row.run === run) &&
      (!words || `${row.prompt}\n${row.completion}`.toLowerCase().includes(words)));
    const order = orders[control("order").value];
    if (order) found = [...found].sort(order);
    list.replaceChildren();
    shown = 0;
    show();
  }

  function show() {
    for (const row of found.slice(shown, shown + ROWS_AT_ONCE)) list.append(item(row));
    shown = Math.min(shown + ROWS_AT_ONCE, found.length);
    told.textContent = said("{shown} of {found} found", { shown: shown.toLocaleString("en-US"), found: found.length.toLocaleString("en-US") });
    more.hidden = shown === found.length;
  }

  function item(row) {
    const box = make("article", "", { className: "row" });
    const signals = Object.entries(row.signals ?? {}).map(([name, value]) => `${name} ${people(value)}`).join(", ");
    const reward = said("reward {reward}", { reward: people(row.reward) });
    const head = [row.run, said("step {step}", { step: people(row.step) })];
    if (signals || Number.isFinite(row.reward)) head.push(`${reward}${signals ? ` (${signals})` : ""}`);
    if (row.tokens !== null) head.push(said("{count} tokens", { count: people(row.tokens) }));
    if (row.cut) head.push(said("cut off"));
    box.append(make("span", head.filter(Boolean).join(" · "), { className: "muted" }));
    box.append(make("pre", row.prompt, { className: "prompt" }), marked(row.completion, control("words").value));
    return box;
  }

  // The text with every place that was searched for
  function marked(text, words) {
    const box = make("pre");
    const lower = text.toLowerCase(), wanted = words.toLowerCase();
    let from = 0;
    for (let at = wanted ? lower.indexOf(wanted) : -1; at >= 0; at = lower.indexOf(wanted, from)) {
      box.append(text.slice(from, at), make("mark", text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    box.append(text.slice(from));
    return box;
  }

  root.querySelector("form").onsubmit = (event) => event.preventDefault();
  root.querySelector("form").oninput = choose;
  more.onclick = show;
  choose();
}

start("completions", async () => {
  const data = await unpackJson("row-data");
  if (data) rows(data);
});
