"use strict";
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const root = document.documentElement;

  function colour(role) {
    const band = role.endsWith("-band");
    const name = "--" + role.slice(1).replace(/-band$/, "");
    const value = getComputedStyle(root).getPropertyValue(name).trim();
    if (!band) return value;
    const n = parseInt(value.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},0.18)`;
  }
  function painted(value) {
    if (typeof value === "string") return value.startsWith("@") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v)]));
    return value;
  }
  function layoutOf(figure, width) {
    const text = getComputedStyle(root).getPropertyValue("--text").trim();
    const names = figure.data.filter((t) => t.showlegend !== false && t.name).map((t) => t.name.length);
    const entry = 60 + 6.6 * Math.min(40, Math.max(0, ...names));
    const rows = Math.ceil(names.length / Math.max(1, Math.floor((width - 60) / entry))) * (Math.max(0, ...names) > 40 ? 1.6 : 1.15);
    const layout = painted(figure.layout);
    const legendRoom = layout.showlegend === false ? 0 : Math.min(22 * rows, 260);
    return Object.assign(layout, {
      width: width,
      height: layout.height + legendRoom,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: width < 640 ? 11 : 13, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 60, r: 16, t: 16, b: 56 + legendRoom },
      legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", itemwidth: 30 },
      hoverlabel: { align: "left" },
    });
  }
  function wrapped(text, size) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if ((lines.at(-1) + " " + word).length > size && lines.at(-1)) lines.push("");
      lines[lines.length - 1] = (lines.at(-1) + " " + word).trim();
    }
    return lines.join("<br>");
  }
  function fitted(data, layout, width) {
    if (width >= 640) return;
    if (layout.yaxis && layout.yaxis.type === "category") {
      const names = [...new Set(data.flatMap((trace) => trace.y))];
      Object.assign(layout.yaxis, { tickvals: names, ticktext: names.map((name) => wrapped(name, 18)), tickfont: { size: 9 } });
      layout.height *= 1.15;
    }
    for (const trace of data) {
      if (trace.name) trace.name = wrapped(trace.name, 40);
      if (trace.text) trace.textfont = { size: 8 };
    }
  }
  function draw(node, width) {
    const figure = figures[node.dataset.figure];
    if (!figure) return;
    const space = width || node.clientWidth;
    const config = { displaylogo: false, responsive: false, displayModeBar: false, staticPlot: Boolean(width) };
    const data = painted(figure.data), layout = layoutOf(figure, space);
    fitted(data, layout, space);
    Plotly.react(node, data, layout, config).then(() => describe(node));
  }
  function describe(node) {
    node.querySelectorAll("svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
  }
  const plots = () => document.querySelectorAll(".plot");
  const drawAll = (width) => plots().forEach((node) => draw(node, width));

  document.querySelectorAll("select[data-target]").forEach((select) => {
    select.addEventListener("change", () => {
      const node = document.getElementById(select.dataset.target);
      node.dataset.figure = select.value;
      node.setAttribute("aria-label", select.dataset.what + ": " + select.selectedOptions[0].textContent);
      document.querySelectorAll(`[data-follows="${select.id}"]`).forEach((part) => {
        part.hidden = part.dataset.figure !== select.value;
      });
      draw(node);
    });
  });
  document.querySelectorAll("button[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => {
      const node = document.getElementById(button.dataset.target);
      const range = node._fullLayout.xaxis.range.slice();
      const [low, high] = range, width = high - low, step = { in: 0.25, out: -0.5, left: 0, right: 0, all: 0 }[button.dataset.zoom];
      const shift = { left: -0.25, right: 0.25 }[button.dataset.zoom] || 0;
      if (button.dataset.zoom === "all") return Plotly.relayout(node, { "xaxis.autorange": true });
      Plotly.relayout(node, { "xaxis.range": [low + width * (step + shift), high - width * (step - shift)] });
    });
  });
  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    theme.textContent = dark ? "Dark colours" : "Light colours";
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  let before, folded = [];
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    folded = [...document.querySelectorAll(".findings details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    drawAll(680);
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    folded.forEach((part) => { part.open = false; });
    drawAll();
  });
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(), 150); });
  drawAll();
  root.dataset.ready = "yes";
})();
