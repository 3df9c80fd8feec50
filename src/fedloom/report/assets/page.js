"use strict";
(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const options = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    toImageButtonOptions: { format: "svg", filename: "fedloom" },
  };

  const controls = (chart) => [...document.querySelectorAll(`[data-chart="${chart}"]`)];
  const control = (chart, key) => controls(chart).find((element) => element.dataset.key === key);
  const colour = (at) => {
    const palette = payload.palettes[night.matches ? "dark" : "light"];
    return palette[at % palette.length];
  };
  const faint = (hex) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},0.16)`;

  const key = (chart, choice) => chart.keys.map((each) => choice[each]).join(" ");

  // The figure for what is chosen: one of several that are ready, or the one frame with the chosen numbers in it.
  function chosen(name, chart) {
    const choice = Object.fromEntries(chart.keys.map((key) => [key, control(name, key).value]));
    if (chart.figures) {
      return structuredClone(chart.figures[key(chart, choice)]);
    }
    const figure = structuredClone(chart.figure);
    const axis = chart.axes[choice.x];
    const lines = chart.lines[choice.name][choice.statistic];
    for (const trace of figure.data) {
      const line = lines.groups[trace.meta.colour];
      trace.x = axis.values[trace.meta.colour];
      trace.y = line[trace.meta.part];
      if (trace.meta.part === "mean") {
        trace.customdata = line.std;
        trace.showlegend = trace.y.some((value) => value !== null);
      }
    }
    figure.layout.xaxis.title.text = axis.title;
    figure.layout.xaxis.tickformat = axis.tickformat;
    figure.layout.xaxis.ticksuffix = axis.ticksuffix;
    figure.layout.yaxis.title.text = lines.title;
    figure.layout.yaxis.type = control(name, "log").checked ? "log" : "linear";
    return figure;
  }

  // The page's colours, light or dark.
  function dress(figure) {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const card = style.getPropertyValue("--card").trim();
    figure.layout.font.color = ink;
    figure.layout.hoverlabel = { ...figure.layout.hoverlabel, bgcolor: card, bordercolor: line, font: { color: ink } };
    figure.layout.modebar.color = style.getPropertyValue("--soft").trim();
    figure.layout.modebar.activecolor = style.getPropertyValue("--accent").trim();
    for (const key of Object.keys(figure.layout).filter((each) => /^[xy]axis\d*$/.test(each))) {
      Object.assign(figure.layout[key], { gridcolor: line, zerolinecolor: line, linecolor: line });
    }
    for (const trace of figure.data) {
      if (trace.meta.sequence || trace.meta.diverging) {
        const scales = trace.meta.diverging ? payload.diverging : payload.sequences;
        trace.colorscale = scales[night.matches ? "dark" : "light"];
        continue;
      }
      const own = colour(trace.meta.colour);
      if (trace.line && trace.line.color) trace.line.color = own;
      if (trace.marker && trace.marker.color) trace.marker.color = own;
      if (trace.marker && trace.marker.pattern) trace.marker.pattern.fgcolor = card;
      if (trace.fillcolor) trace.fillcolor = faint(own);
    }
    return figure;
  }

  // On a narrow screen charts keep their height but not their margins.
  function fit(figure, place) {
    if (place.clientWidth < 560) {
      figure.layout.margin = { ...figure.layout.margin, l: 40, r: 6 };
      figure.layout.font.size = 12;
      if (figure.layout.yaxis.type === "log") figure.layout.yaxis.dtick = 1;
      for (const trace of figure.data) {
        if (trace.colorbar) trace.showscale = false;
      }
    }
    return figure;
  }

  function draw(name) {
    const place = document.getElementById(`chart-${name}`);
    const figure = fit(dress(chosen(name, payload.charts[name])), place);
    return Plotly.react(place, figure.data, figure.layout, options);
  }

  // A statistic that the chosen metric does not have cannot be chosen; the scale follows the metric.
  function settle(name) {
    const chart = payload.charts[name];
    if (chart.figures) {
      // What was chosen first stays; of the choices after it those cannot be chosen for which there is no figure.
      const choice = Object.fromEntries(chart.keys.map((each) => [each, control(name, each).value]));
      for (const [at, each] of chart.keys.entries()) {
        const known = (value) => Object.keys(chart.figures).some((figure) => {
          const start = [...chart.keys.slice(0, at).map((before) => choice[before]), value].join(" ");
          return figure === start || figure.startsWith(`${start} `);
        });
        const element = control(name, each);
        for (const option of element.options) option.disabled = !known(option.value);
        if (!known(choice[each])) {
          element.value = [...element.options].find((option) => !option.disabled).value;
          choice[each] = element.value;
        }
      }
      return;
    }
    const lines = chart.lines[control(name, "name").value];
    const statistic = control(name, "statistic");
    for (const option of statistic.options) option.disabled = !(option.value in lines);
    if (!(statistic.value in lines)) statistic.value = Object.keys(lines)[0];
    control(name, "log").checked = chart.log[control(name, "name").value];
  }

  function paint() {
    for (const swatch of document.querySelectorAll("[data-colour]")) {
      swatch.style.backgroundColor = colour(Number(swatch.dataset.colour));
    }
    for (const name of Object.keys(payload.charts)) draw(name);
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const compare = (left, right) => {
      const [a, b] = [parseFloat(left), parseFloat(right)];
      if (left === "" || right === "") return (left === "") - (right === "");
      return Number.isNaN(a) || Number.isNaN(b) ? left.localeCompare(right) : a - b;
    };
    const heads = [...table.querySelectorAll("th[data-sort]")];
    for (const head of heads) {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const at = Number(head.dataset.sort);
        const rows = [...body.rows].sort((a, b) => compare(value(a, at), value(b, at)));
        body.append(...(down ? rows.reverse() : rows));
      });
    }
  }

  function copies(button) {
    button.addEventListener("click", async () => {
      const code = button.closest(".code").querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
    });
  }

  for (const name of Object.keys(payload.charts)) {
    settle(name);
    for (const element of controls(name)) {
      element.addEventListener("change", () => {
        if (element.dataset.key === "name" || payload.charts[name].figures) settle(name);
        draw(name);
      });
    }
  }
  document.querySelectorAll("table.results").forEach(sortable);
  document.querySelectorAll("button.copy").forEach(copies);
  night.addEventListener("change", paint);
  paint();
})();
