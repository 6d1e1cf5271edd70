// SPDX-License-Identifier: Apache-2.0
// Draws the charts with Bokeh, each when it comes into view: axis, smoothing and the choice of lines hold for all.
"use strict";

const DASHES = ["solid", "dashed", "dotdash", "dotted", [8, 3, 2, 3, 2, 3], [4, 2], [2, 2], [10, 4]];
const HEIGHT = 240; // as in the style sheet, so that the page does not jump
const MOST_TOOLTIPS = 4;

function charts(data) {
  const state = {
    axis: chosen.get("axis", data.several ? "completions" : "step"), // what runs that are compared have in common
    smoothing: Number(chosen.get("smoothing", 5)), // per cent of a run
    hidden: new Set(JSON.parse(chosen.get("hidden", "[]"))),
  };
  if (!(state.axis in data.axes)) state.axis = Object.keys(data.axes)[0];
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const shown = new Map();

  const redraw = () => { for (const figure of shown.keys()) draw(figure); };
  const draw = (figure) => {
    const chart = data.charts[Number(figure.dataset.chart)];
    const plot = chart.kind === "bars" ? bars(chart, figure) : chart.kind === "stack" ? stack(chart) : lines(chart);
    const place = figure.querySelector(".plot");
    const old = shown.get(figure);
    shown.set(figure, Bokeh.Plotting.show(plot, place));
    if (old) old.then((view) => [view].flat().forEach((each) => each.remove()));
    shown.get(figure).then(() => { figure.dataset.drawn = chart.title; });
    chips(chart, figure);
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  };
  const colourOf = (index) => colours()(`line${index % 8}`);
  const keyOf = (chart, line) => (data.several ? line.group ?? line.label : `${chart.title}/${line.label}`);
  const isShown = (chart, line) => !state.hidden.has(keyOf(chart, line));

  // The time of a run in the unit that people would use for it
  const xOf = (line) => (state.axis === "seconds" ? line.x.seconds.map((value) => value / unit().size) : line.x[state.axis]);
  const unit = () => {
    const longest = data.longest ?? 0;
    if (longest >= 3 * 3600) return { size: 3600, title: said("hours of training") };
    return longest >= 300 ? { size: 60, title: said("minutes of training") } : { size: 1, title: data.axes.seconds };
  };
  const axisTitle = () => (state.axis === "seconds" ? unit().title : data.axes[state.axis]);

  function runningMean(values) {
    const width = Math.max(1, Math.floor((values.length * state.smoothing) / 100));
    let sum = 0;
    return values.map((value, place) => {
      sum += value - (place >= width ? values[place - width] : 0);
      return sum / Math.min(place + 1, width);
    });
  }

  function frame(chart, options) {
    const css = colours();
    const touch = matchMedia("(pointer: coarse)").matches; // a finger that drags wants to scroll the page
    const plot = Bokeh.Plotting.figure({
      height: HEIGHT,
      sizing_mode: "stretch_width",
      tools: "box_zoom,pan,wheel_zoom,reset",
      active_drag: touch ? null : "box_zoom",
      active_scroll: null,
      toolbar_location: null,
      background_fill_color: null,
      border_fill_color: null,
      outline_line_color: null,
      min_border_right: 12,
      ...options,
    });
    for (const axis of [plot.xaxis, plot.yaxis].flatMap((each) => [...each])) {
      axis.axis_line_color = axis.major_tick_line_color = css("rule");
      axis.minor_tick_line_color = null;
      axis.major_label_text_color = axis.axis_label_text_color = css("muted");
      axis.major_label_text_font_size = axis.axis_label_text_font_size = "11px";
      axis.axis_label_text_font_style = "normal";
    }
    for (const grid of [plot.xgrid, plot.ygrid].flatMap((each) => [...each])) grid.grid_line_color = css("grid");
    plot.xaxis.axis_label = axisTitle();
    if (chart.unit) plot.yaxis.axis_label = chart.unit;
    plot.xaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0,0.[00]" });
    const largest = Math.max(...(chart.lines ?? []).flatMap((line) => line.y.map(Math.abs)), 0);
    if (largest >= 0.01 || chart.histograms) // smaller numbers are better told with an exponent
      plot.yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0,0.[00000]" });
    plot.toolbar.logo = null;
    return plot;
  }

  const hover = (renderers, chart) => new Bokeh.HoverTool({
    renderers,
    mode: renderers.length > MOST_TOOLTIPS ? "mouse" : "vline",
    line_policy: "nearest",
    tooltips: [["", "@label"], [chart.unit || said("value"), "@told"], [axisTitle(), "@at"]],
  });

  function source(line, x, y, low, high) {
    const told = line.y.map((value, place) => {
      const shown = { value: people(value), smooth: people(y[place]) };
      if (line.mean)
        return said("{value}, 95 % interval {low} to {high}", { ...shown, low: people(line.low[place]), high: people(line.high[place]) });
      return y === line.y || y[place] === value || line.dots ? shown.value : said("{value}, smoothed {smooth}", shown);
    });
    return new Bokeh.ColumnDataSource({
      data: { x, y, raw: line.y, low, high, told, at: x.map(people), label: x.map(() => line.label) },
    });
  }

  function lines(chart) {
    const plot = frame(chart, {});
    const renderers = [];
    for (const [place, line] of chart.lines.entries()) {
      if (!isShown(chart, line)) continue;
      const x = xOf(line);
      const colour = colourOf(line.colour);
      const smooth = !line.dots && !line.mean && state.smoothing > 0;
      const y = smooth ? runningMean(line.y) : line.y;
      const low = line.low ?? line.spread?.map((spread, at) => line.y[at] - spread) ?? line.y;
      const high = line.high ?? line.spread?.map((spread, at) => line.y[at] + spread) ?? line.y;
      const data = source(line, x, y, low, high);
      const field = (name) => ({ field: name });
      const band = line.low || line.spread;
      const dash = DASHES[(data.several ? line.colour : place) % DASHES.length];
      if (band)
        plot.varea(field("x"), field("low"), field("high"), { source: data, fill_color: colour, fill_alpha: 0.15 });
      if (line.faint) {
        plot.line(field("x"), field("y"), { source: data, line_color: colour, line_alpha: 0.3 });
        continue;
      }
      if (smooth && line.y.length > 1)
        plot.line(field("x"), field("raw"), { source: data, line_color: colour, line_alpha: 0.3 });
      renderers.push(
        plot.line(field("x"), field("y"), { source: data, line_color: colour, line_width: line.mean ? 2.6 : 1.8, line_dash: dash }),
      );
      if (line.dots) plot.scatter(field("x"), field("y"), { source: data, fill_color: colour, line_color: colour, size: 5 });
    }
    if (renderers.length) plot.add_tools(hover(renderers, chart));
    return plot;
  }

  function stack(chart) {
    const plot = frame(chart, {});
    const renderers = [];
    const shown = chart.lines.filter((line) => isShown(chart, line));
    const parts = stacked(shown.map((line) => ({ x: xOf(line), y: line.y })));
    for (const [place, line] of shown.entries()) {
      const x = xOf(line), { above, below } = parts[place];
      const look = { fill_color: colourOf(line.colour), fill_alpha: 0.7 };
      for (const { start, end, isEmpty } of [above, below]) {
        if (isEmpty) continue;
        if (x.length === 1) plot.vbar(x, 1, end, start, { ...look, line_color: null });
        else plot.varea(x, start, end, look);
      }
      const edge = line.y.map((value, at) => (value < 0 ? below : above).end[at]);
      const data = source(line, x, line.y, edge, edge);
      const field = (name) => ({ field: name }); // an outline would jump with the sign: this one only tells values
      renderers.push(plot.line(field("x"), field("high"), { source: data, line_alpha: 0 }));
    }
    if (chart.top) plot.y_range = new Bokeh.Range1d({ start: 0, end: chart.top });
    if (renderers.length) plot.add_tools(hover(renderers, chart));
    return plot;
  }

  // A histogram of one log, with that of the first one behind it
  function bars(chart, figure) {
    const slider = figure.querySelector("input[type=range]");
    const at = Number(slider.value);
    const all = chart.histograms, now = all[at], first = all[0];
    const over = (name, pick) => pick(...all.map((each) => each[name]));
    const plot = frame({ unit: said("completions"), histograms: all }, {
      x_range: new Bokeh.Range1d({ start: over("low", Math.min), end: over("high", Math.max) }),
    });
    plot.xaxis.axis_label = chart.unit;
    const css = colours();
    figure.querySelector("output").textContent = said("step {step}", { step: people(now.step) });
    const edges = (each) => each.counts.map((_, place) => each.low + ((each.high - each.low) / each.counts.length) * place);
    const data = (each) => {
      const left = edges(each), width = (each.high - each.low) / each.counts.length;
      const told = left.map((value) => said("{low} to {high}", { low: people(value), high: people(value + width) }));
      return new Bokeh.ColumnDataSource({ data: { left, right: left.map((value) => value + width), top: each.counts, bottom: each.counts.map(() => 0), told } });
    };
    const field = (name) => ({ field: name });
    const quad = (each, look) => plot.quad(field("left"), field("right"), field("bottom"), field("top"), { source: data(each), ...look });
    const front = quad(now, { fill_color: colourOf(0), fill_alpha: 0.6, line_color: css("ground") });
    if (at) quad(first, { fill_color: null, line_color: colourOf(1), line_width: 1.5 });
    plot.add_tools(new Bokeh.HoverTool({ renderers: [front], tooltips: [[chart.unit, "@told"], [said("completions"), "@top"]] }));
    slider.oninput = () => draw(figure);
    return plot;
  }

  function toggle(key) {
    if (!state.hidden.delete(key)) state.hidden.add(key);
    chosen.set("hidden", JSON.stringify([...state.hidden]));
  }

  function chip(key, label, colour, changed) {
    const button = make("button", "", { type: "button", className: "chip" });
    const swatch = make("i");
    swatch.style.background = colour;
    button.append(swatch, label);
    button.setAttribute("aria-pressed", String(!state.hidden.has(key)));
    button.onclick = () => { toggle(key); button.setAttribute("aria-pressed", String(!state.hidden.has(key))); changed(); };
    return button;
  }

  function chips(chart, figure) {
    const place = figure.querySelector(".chips");
    if (!place || data.several || place.childElementCount || (chart.lines ?? []).length < 2) return;
    for (const line of chart.lines)
      place.append(chip(keyOf(chart, line), line.label, `var(--line${line.colour % 8})`, () => draw(figure)));
  }

  const runs = document.getElementById("runs");
  for (const each of runs ? data.groups : [])
    runs.append(chip(each.label, each.label, `var(--line${each.colour % 8})`, redraw));
  for (const radio of document.querySelectorAll("input[name=axis]")) {
    radio.checked = radio.value === state.axis;
    radio.onchange = () => { state.axis = radio.value; chosen.set("axis", radio.value); redraw(); };
  }
  const slider = document.getElementById("smoothing");
  const say = () => { slider.nextElementSibling.textContent = state.smoothing ? said("{share} % of the run", { share: state.smoothing }) : said("off"); };
  if (slider) {
    slider.value = state.smoothing;
    say();
    slider.onchange = redraw;
    slider.oninput = () => { state.smoothing = Number(slider.value); chosen.set("smoothing", slider.value); say(); };
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "300px" });
  figures.forEach((figure) => seen.observe(figure));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => figures.filter((figure) => !shown.has(figure)).forEach(draw));
}

start("charts", async () => {
  const library = await unpack("plotting-library");
  if (!library) return;
  document.head.append(make("script", library));
  Bokeh.logger.set_level("warn");
  charts(await unpackJson("chart-data"));
});
