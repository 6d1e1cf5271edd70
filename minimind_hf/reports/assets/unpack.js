// SPDX-License-Identifier: Apache-2.0
// Data and the plotting library lie in the page packed, as base64 of gzip: the page stays small and needs no network.
"use strict";

async function unpack(id) {
  const element = document.getElementById(id);
  if (!element) return null;
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
  const packed = new ReadableStream({ start(control) { control.enqueue(bytes); control.close(); } });
  const reader = packed.pipeThrough(new DecompressionStream("gzip")).pipeThrough(new TextDecoderStream()).getReader();
  const parts = []; // all within this page's own thread: whoever waits for the page to rest waits for this
  for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
  return parts.join("");
}

const unpackJson = async (id) => JSON.parse((await unpack(id)) || "null");

function make(tag, text, properties) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text; // never markup: a run may hold any text
  return Object.assign(element, properties || {});
}

// A text in the language of the page, with the values that it names in braces
function said(text, values) {
  return (TEXTS[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// Numbers as people write them: three digits that count, all digits before the point, commas between thousands
function people(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size > 0 && size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
}

// What the reader has chosen survives a reload
const keyOfPage = (name) => `${location.pathname} ${name}`;
const chosen = {
  get: (name, standard) => { try { return sessionStorage.getItem(keyOfPage(name)) ?? standard; } catch { return standard; } },
  set: (name, value) => { try { sessionStorage.setItem(keyOfPage(name), value); } catch { /* a page that may store nothing */ } },
};

// A page whose run goes on is loaded again, unless its reader is about to type or to choose something
if (document.body.dataset.refresh)
  setInterval(() => {
    if (document.activeElement === document.body && document.visibilityState === "visible") location.reload();
  }, 1000 * Number(document.body.dataset.refresh));

async function start(name, work) {
  try {
    if (typeof DecompressionStream === "undefined")
      throw new Error(said("this browser cannot unpack them; use a Chrome, Firefox or Safari of 2023 or later"));
    await work();
  } catch (error) {
    for (const place of document.querySelectorAll(`[data-needs="${name}"]`))
      place.prepend(make("p", said("This could not be shown: {why}", { why: error.message }), { className: "warn" }));
    console.error(error);
  }
}
