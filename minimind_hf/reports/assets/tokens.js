// SPDX-License-Identifier: Apache-2.0
// A completion token by token: shaded by one of its numbers, all of them told of the token that is pointed at.
"use strict";

const MEASURES = {
  divergence: { title: "divergence from the teacher" },
  logp: { title: "log-probability", low: true },
  ratio: { title: "ratio to the sampling policy", middle: 1 },
  advantage_of_token: { title: "advantage", middle: 0 },
  kl: { title: "KL to the reference" },
  value: { title: "value of the critic", middle: null },
  return: { title: "return", middle: null },
};

function tokens(data) {
  const root = document.getElementById("tokens");
  const which = root.querySelector("[name=which]"), measure = root.querySelector("[name=measure]");
  const text = root.querySelector(".shaded"), told = root.querySelector("output");

  const numbersOf = (row, name) => row[name] ?? (name === "logp" ? row.engine_logp : null);
  const known = Object.keys(MEASURES).filter((name) => data.some((row) => numbersOf(row, name)));
  data.forEach((row, place) => {
    const own = ["reward", "advantage"].filter((name) => Number.isFinite(row[name]));
    const parts = [...own.map((name) => `${name} ${people(row[name])}`), said("{count} tokens", { count: row.tokens.length })];
    which.append(make("option", [said("step {step}", { step: people(row.step) }), parts.join(said(", "))].join(said(": ")), { value: place }));
  });
  known.forEach((name) => measure.append(make("option", said(MEASURES[name].title), { value: name })));
  which.value = data.length - 1;

  // How strong the shade of each value is, and to which side of the middle it lies
  function shades(values, { low, middle }) {
    const there = values.filter((value) => value !== null);
    const centre = middle === undefined ? 0 : middle ?? there.reduce((sum, value) => sum + value, 0) / there.length;
    const largest = Math.max(...there.map((value) => Math.abs(value - centre)), 1e-9);
    return values.map((value) => value === null ? null : { size: Math.abs(value - centre) / largest, side: low || value < centre ? "minus" : "plus" });
  }

  function show() {
    const row = data[Number(which.value)];
    const values = numbersOf(row, measure.value);
    root.querySelector(".prompt").textContent = row.prompt;
    text.replaceChildren();
    told.textContent = values ? "" : said("The update did not compute this completion: it had nothing to teach.");
    const shaded = shades(values ?? row.tokens.map(() => null), MEASURES[measure.value]);
    row.tokens.forEach((token, place) => {
      const span = make("span", token.replaceAll("\n", "\u23ce\n") || "\u00b7", { tabIndex: 0 });
      const facts = known.filter((name) => numbersOf(row, name)).map((name) => `${said(MEASURES[name].title)} ${people(numbersOf(row, name)[place])}`);
      if (!row.wrote[place]) facts.push(said("not the policy's"));
      const say = said("token {number}: {facts}", { number: place + 1, facts: facts.join(said(", ")) });
      const shade = row.wrote[place] ? shaded[place] : null;
      if (shade) span.style.background = `color-mix(in srgb, var(--${shade.side}) ${Math.round(75 * shade.size)}%, transparent)`;
      if (!row.wrote[place]) span.className = "muted";
      span.title = say;
      span.onmouseenter = span.onfocus = () => { told.textContent = say; };
      text.append(span);
    });
  }

  which.onchange = measure.onchange = show;
  show();
}

start("tokens", async () => {
  const data = await unpackJson("token-data");
  if (data) tokens(data);
});
