{{- $sections := slice -}}
{{- range site.Pages -}}
  {{- $page := . -}}
  {{- $title := partial "title.html" . -}}
  {{- range $i, $part := split (replaceRE "(?m)^```.*$" "" .RawContent) "\n## " -}}
    {{- $heading := index (split $part "\n") 0 | strings.TrimPrefix "# " -}}
    {{- $url := $page.RelPermalink -}}
    {{- if $i }}{{ $url = printf "%s#%s" $url (anchorize $heading) }}{{ end -}}
    {{- $sections = $sections | append (dict "page" $title "heading" $heading "url" (strings.TrimPrefix "/" $url) "text" $part) -}}
  {{- end -}}
{{- end -}}
// Every word of a query is in the section; those with a word in their heading come first.
const sections = {{ $sections | jsonify }};
const root = document.currentScript.src.replace(/search\.js.*/, "");
const input = document.getElementById("search"), found = document.getElementById("found");
for (const s of sections) s.lower = (s.page + " " + s.text).toLowerCase();
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  document.getElementById("pages").hidden = words.length > 0;
  const rank = s => words.filter(w => (s.page + " " + s.heading).toLowerCase().includes(w)).length;
  const hits = words.length ? sections.filter(s => words.every(w => s.lower.includes(w))) : [];
  found.replaceChildren(...hits.sort((a, b) => rank(b) - rank(a)).slice(0, 20).map(s => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = root + s.url.replace(/(^|\/)(#|$)/, (location.protocol === "file:" ? "$1index.html$2" : "$1$2"));
    link.textContent = s.page === s.heading ? s.page : s.page + ": " + s.heading;
    item.append(link);
    return item;
  }));
  if (words.length && !hits.length) found.textContent = "Nothing found";
});
const query = new URLSearchParams(location.search).get("q"); // a link to the answers of a query
if (query) {
  input.value = query;
  input.dispatchEvent(new Event("input"));
}
