// Renders the formulas that the extension "katex" has left as text.
for (const element of document.querySelectorAll(".math")) {
  katex.render(element.textContent, element, {displayMode: element.tagName === "DIV", throwOnError: false});
}
