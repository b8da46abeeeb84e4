// Chat templates: the same bytes as jinja2, marks of content, refusals with their place, limits, and no
// crash.
#include "models/text/template/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/models/text/template/template_cases.h"

namespace sluice {
namespace {

using testing::TemplateCase;
using Json = nlohmann::ordered_json;

const std::string kCases = "tests/fixtures/chat_templates/cases.json";

std::string error_of(const std::string& source, const Json& variables = Json::object(),
                     const TemplateLimits& limits = {}) {
  try {
    RenderOptions options;
    options.limits = limits;
    ChatTemplate(source).render(variables, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::malformed_file);
    EXPECT_FALSE(error.remedy().empty());
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, RendersWhatJinjaRendersAndFailsWhereItFails) {
  size_t cases = 0;
  testing::for_each_case(kCases, [&](const TemplateCase& c) {
    ++cases;
    const auto got = testing::render_case(c);
    EXPECT_FALSE(got.is_refused) << c.name << ": " << got.error;
    EXPECT_EQ(testing::difference_of(c, got), "") << c.name << ": " << c.source;
  });
  EXPECT_GT(cases, 250u);
}

// ---- Marks of content ----

TEST(ChatTemplate, TellsFromWhichStringEachByteCame) {
  const Json variables = {{"messages", Json::array({{{"role", "user"}, {"content", " q "}}, "x"})},
                          {"tools", Json::array({{{"k", "v"}}})}};
  const Rendered rendered = ChatTemplate(
                                "{{ messages[0].content | trim ~ messages[1] }}:{{ tools[0].k | upper }}{% "
                                "for k in tools[0] %}{{ k }}"
                                "{% endfor %}{{ messages[0].role }}")
                                .render(variables, {});
  EXPECT_EQ(rendered.text, "qx:Vkuser");
  using S = SourceRange;
  EXPECT_EQ(rendered.sources,
            (std::vector<S>{{0, 1, 1}, {1, 2, 2}, {3, 4, 3}, {4, 5, S::kNoValue}, {5, 9, 0}}));
  EXPECT_EQ(rendered.content, (std::vector<ByteRange>{{0, 2}, {3, 9}}));
}

// The rendered text, with [ and ] around each part that is content.
std::string marked(const std::string& source, const Json& variables) {
  RenderOptions options;
  options.control_variables = {"bos"};
  const Rendered rendered = ChatTemplate(source).render(variables, options);
  std::string text = rendered.text;
  for (auto span = rendered.content.rbegin(); span != rendered.content.rend(); ++span) {
    text.insert(span->end, "]");
    text.insert(span->begin, "[");
  }
  return text;
}

TEST(ChatTemplate, MarksWhatComesFromTheInput) {
  const Json variables = {{"bos", "<s>"}, {"x", " a<b>\n "}, {"y", "é"}, {"o", {{"k", "v"}, {"n", 1}}}};
  const std::pair<const char*, const char*> cases[] = {
      {"<u>{{ x }}</u>", "<u>[ a<b>\n ]</u>"},
      {"{{ bos }}{{ y }}", "<s>[é]"},
      {"{{ bos + y + '</s>' }}{{ '<' ~ y ~ '>' }}", "<s>[é]</s><[é]>"},
      {"{{ ('<' + x + '>') | trim }}", "<[ a<b>\n ]>"},
      {"{{ x | trim }}{{ x.strip().split('<') | join('|') }}", "[a<b>a]|[b>]"},
      {"{{ (x + 'lit')[2:8] }}{{ ('lit' + y)[::-1] }}", "[<b>\n ]l[é]til"},
      {"{{ 'a-b'.replace('-', y) }}{{ y.replace('é', '<s>') }}", "a[é]b<s>"},
      {"{{ y | upper }}{{ ('a' + y) | upper }}{{ 'a' | upper }}", "[ÉAÉ]A"},
      {"{{ o }}{{ o | tojson }}", "{'[k]': '[v]', '[n]': 1}{\"[k]\": \"[v]\", \"[n]\": 1}"},
      {"{{ x | tojson }}{{ [x] }}", "\"[ a<b>\\n ]\"['[ a<b>\\n ]']"},
      {"{{ '%s|%s' % (y, 'l') }}{{ '{}|{}'.format(y, 'l') }}", "[é]|l[é]|l"},
      {"{{ 'a\nb' | indent(2) }}{{ x | indent('--') }}", "a\n  b[ a<b>\n]--[ ]"},
      {"{% set z %}<{{ y }}>{% endset %}{{ z | trim('<') }}", "[é]>"},
      {"{% macro m(t) %}({{ t }}){% endmacro %}{{ m(y) }}{{ m('l') }}", "([é])(l)"},
      {"{% for c in y ~ 'z' %}{{ c }}{% endfor %}{{ ', '.join([y, 'l']) }}", "[é]z[é], l"},
      {"{{ y if y == 'é' else 1 }}{{ o.n }}{{ (y ~ y).count('é') }}", "[é]12"},
      {"{% filter trim %} {{ y }} {% endfilter %}{{ y * 2 }}", "[ééé]"},
      {"{{ ('<' | safe) + x }}", "<[ a&lt;b&gt;\n ]"},
      {"{{ 'é'[0] == y }}{{ y }}", "True[é]"},
  };
  for (const auto& [source, wanted] : cases) EXPECT_EQ(marked(source, variables), wanted) << source;
}

// ---- Errors ----

TEST(ChatTemplate, NamesWhatItRefusesWithItsPlace) {
  const std::string outside = " is outside the subset of Jinja that is supported.";
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% include 'x' %}", "line 2, column 6: statement 'include'"},
      {"{% import 'x' as y %}", "line 1, column 4: statement 'import'"},
      {"{% extends 'x' %}", "line 1, column 4: statement 'extends'"},
      {"{% do x.append(1) %}", "line 1, column 4: statement 'do'"},
      {"{% with a = 1 %}{% endwith %}", "line 1, column 4: statement 'with'"},
      {"{% for x in y recursive %}{% endfor %}", "line 1, column 15: a recursive loop"},
      {"é{{ x | urlize }}", "line 1, column 9: filter 'urlize'"},
      {"{{ x is escaped }}", "line 1, column 9: test 'escaped'"},
      {"{{ f(*x) }}", "line 1, column 6: '*' in front of an argument"},
      {"{{ 'a'.encode() }}", "line 1, column 14: method 'encode' of a string"},
      {"{{ lipsum() }}", "line 1, column 4: function 'lipsum'"},
      {"{{ 9223372036854775807 + 1 }}", "line 1, column 24: an integer beyond 64 bits"},
      {"{{ 99999999999999999999 }}", "line 1, column 4: an integer beyond 64 bits"},
      {"{% set ü = 1 %}", "line 1, column 8: a character beyond ASCII outside of strings"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "line 1, column 19: 'varargs' of a macro"},
      {"{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}",
       "line 1, column 19: 'generation' inside of another block that is rendered apart"},
      {"{{ range(3) }}", "line 1, column 1: printing a range"},
      {"{{ 'a' | map('upper') }}", "line 1, column 1: printing a value of type 'generator'"},
  };
  for (const auto& [source, wanted] : cases)
    EXPECT_EQ(error_of(source), "chat template, " + std::string(wanted) + outside) << source;
}

TEST(ChatTemplate, SaysWhatIsWrongAndWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ raise_exception('Roles must alternate') }}",
       "line 1, column 19: the template rejects the conversation: Roles must alternate."},
      {"{{ raise_exception('a\nb\x1b') }}",
       "line 1, column 19: the template rejects the conversation: a\\x0ab\\x1b."},
      {"\n\n {{ x.y }}", "line 3, column 6: 'x' is undefined."},
      {"{% if a %}", "line 1, column 11: expected '{% endif %}', found the end of the template."},
      {"{% endif %}", "line 1, column 4: there is no statement 'endif'."},
      {"{{ 'a' + 1 }}", "line 1, column 8: '+' does not take 'str' and 'int'."},
      {"{{ 1 | nothing }}", "line 1, column 8: there is no filter 'nothing'."},
      {"{{ strftime_now('%d') }}", "line 1, column 16: strftime_now needs a time, and none is given."},
      {"\xff", "line 1, column 1: it is not UTF-8."},
  };
  for (const auto& [source, wanted] : cases)
    EXPECT_EQ(error_of(source), "chat template, " + std::string(wanted)) << source;
  EXPECT_EQ(error_of("{{ raise_exception('" + std::string(2000, 'x') + "') }}"),
            "chat template, line 1, column 19: the template rejects the conversation: " +
                std::string(500, 'x') + "....");
}

// ---- Limits ----

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string numbered(const std::string& before, const std::string& behind, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += before + std::to_string(i) + behind;
  return all;
}

TEST(ChatTemplate, EndsWhateverTheTemplateAsksFor) {
  const TemplateLimits small = {.steps = 100'000, .bytes = 1 << 20};
  const std::string deep = "more than";
  for (const std::string& source : std::initializer_list<std::string>{
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor "
           "%}{{ ns.x }}",
           "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
           "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = cycler(ns.x) %}{% endfor %}",
           "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% for j in [ns.x] %}{% set ns.x = loop %}"
           "{% endfor %}{% endfor %}",
           "{{ 'a' * 9999999999 }}", "{{ [1] * 9999999999 }}", "{{ 'ab' | replace('', 'x' * 999999) }}",
           "{{ ('a' * 999999).split('a') }}", "{{ ('a' * 99999).strip('b' * 99999 + 'a') }}",
           "{% for a in range(999) %}{{ 'a' * 9999 }}{% endfor %}",
           "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = joiner(ns.x) %}{% endfor %}",
           "{% set t = ('a',) * 999 %}{% for i in range(999) %}{{ 'b'.startswith(t) }}{% endfor %}",
           "{{ ([1] * 99) | tojson(separators=('x' * 9999 * 9, ':')) }}",
           "{% set a = 'a' * 9999 %}{% for i in range(99) %}{{ a.count('a') }}{% "
           "endfor %}",
           "{% set a = 'a' * 9999 %}{% for i in range(999) %}{{ a | length }}{{ a | int }}{% endfor %}",
           "{% set a = 'a' * 9999 %}{% set b = 'a' * 9999 %}{% for i in range(999) %}{{ a == b }}{% endfor "
           "%}",
           // A name or key is looked for among all others, one after the other.
           "{% set d = {" + numbered("", ": 1,", 3000) + "} %}", numbered("{% set a", " = 1 %}", 3000),
           "{% set n = namespace() %}" + numbered("{% set n.a", " = 1 %}", 3000)})
    EXPECT_NE(error_of(source, Json::object(), small).find(deep), std::string::npos)
        << source << ": " << error_of(source, Json::object(), small);
}

TEST(ChatTemplate, RefusesToNestTooDeep) {
  constexpr size_t kDeep = 100'000;
  for (const std::string& source : std::initializer_list<std::string>{
           "{{ " + repeated("(", kDeep), "{{ " + repeated("[", kDeep), "{{ " + repeated("{1:", kDeep),
           "{{ " + repeated("not ", kDeep), "{{ " + repeated("-", kDeep), "{{ x" + repeated("[x", kDeep),
           "{{ x" + repeated("(x", kDeep), "{{ 1" + repeated(" + 1", kDeep) + " }}",
           "{{ x" + repeated(".x", kDeep) + " }}", "{{ x" + repeated("|abs", kDeep) + " }}",
           "{{ 1" + repeated(" if 1 else 1", kDeep) + " }}",
           "{{ x" + repeated(" is eq x", 1) + repeated(" is eq(x", kDeep), repeated("{% if x %}", kDeep),
           repeated("{% for x in y %}", kDeep), repeated("{% set x %}", kDeep),
           "{% set " + repeated("(", kDeep), "{% for " + repeated("(", kDeep)})
    EXPECT_NE(error_of(source), "no error") << source.substr(0, 40);
  Json nested = "x";
  for (int i = 0; i < 200; ++i) nested = Json::array({std::move(nested)});
  EXPECT_NE(error_of("", {{"x", nested}}).find("nested more than"), std::string::npos);
}

TEST(ChatTemplate, NamesAndArgumentsAreLimited) {
  const std::string long_name(1001, 'x');
  EXPECT_EQ(error_of("{{ " + long_name + " }}"),
            "chat template, line 1, column 4: a name of more than 1000 bytes is outside the subset of Jinja "
            "that is "
            "supported.");
  EXPECT_EQ(error_of("{{ " + long_name.substr(1) + " }}"), "no error");
  EXPECT_NE(error_of("{% macro f(" + numbered("a", ",", 256) + "b) %}{% endmacro %}")
                .find("a macro has more than 255 parameters."),
            std::string::npos);
  EXPECT_NE(
      error_of("{{ f(" + numbered("a", "=1,", 256) + "b=1) }}").find("a call has more than 255 arguments."),
      std::string::npos);
  // A message cuts off a long name.
  EXPECT_EQ(error_of("{{ {}['" + repeated("a", 99) + repeated("é", 99) + "'].x }}"),
            "chat template, line 1, column 208: 'dict' has no '" + repeated("a", 99) + "'.");
}

TEST(ChatTemplate, NumbersAtTheBorderOf64Bits) {
  EXPECT_NE(error_of("{{ (-9223372036854775807 - 1) / 2 }}").find("dividing integers beyond 2^53"),
            std::string::npos);
  EXPECT_EQ(ChatTemplate("{{ 'a-b'.rsplit('-', 9223372036854775807) }}").render(Json::object(), {}).text,
            "['a', 'b']");
}

TEST(ChatTemplate, ALoopIsNotAskedByItsOwnCondition) {
  const std::string begin = "{% set ns = namespace(l=0) %}{% for i in range(6) if i != 2 or ns.l.";
  const std::string end = " >= 0 %}{% set ns.l = loop %}{{ i }}{% endfor %}";
  EXPECT_EQ(ChatTemplate(begin + "index" + end).render(Json::object(), {}).text, "012345");
  for (const char* ahead : {"length", "revindex", "nextitem"})
    EXPECT_NE(error_of(begin + ahead + end).find("the condition of a loop asks for items of that loop."),
              std::string::npos)
        << ahead << ": " << error_of(begin + ahead + end);
}

// ---- Mutations ----

// Removes, repeats, moves or overwrites a few bytes.
std::string mutated(std::string source, const std::vector<std::string>& sources, std::mt19937_64& random) {
  static const std::string kPieces[] = {"{%",   "%}", "{{", "}}", "{#",   "-%}",   "|",    "(",
                                        ")",    "[",  "]",  "'",  ".",    " for ", " if ", " in ",
                                        "loop", "%",  "~",  "\n", "\xC3", "0",     "9",    ":"};
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t n = 1 + below(4); n > 0; --n) {
    const size_t at = below(source.size() + 1), length = below(12);
    switch (below(4)) {
      case 0:
        source.erase(at, length);
        break;
      case 1:
        source.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 2:
        source.insert(below(source.size() + 1), source.substr(at, length));
        break;
      default: {
        const std::string& other = sources[below(sources.size())];
        source.insert(at, other.substr(below(other.size() + 1), 4 * length));
      }
    }
  }
  return source;
}

TEST(ChatTemplate, MutatedTemplatesRenderOrFail) {
  std::vector<TemplateCase> cases;
  std::vector<std::string> sources;
  testing::for_each_case(kCases, [&](const TemplateCase& c) {
    sources.push_back(c.source);
    cases.push_back(c);
  });
  std::mt19937_64 random(20260709);
  constexpr int kMutations = 20'000;
  int rendered = 0;
  for (int i = 0; i < kMutations; ++i) {
    TemplateCase c = cases[random() % cases.size()];
    c.source = mutated(c.source, sources, random);
    const auto result = testing::render_case(c, {.steps = 200'000, .bytes = 4 << 20});
    ASSERT_TRUE(result.rendered || !result.error.empty()) << c.source;
    if (!result.rendered) continue;
    ++rendered;
    size_t end = 0;
    for (const ByteRange& span : result.rendered->content) {
      ASSERT_TRUE((span.begin > end || end == 0) && span.begin < span.end) << c.source;
      end = span.end;
    }
    ASSERT_LE(end, result.rendered->text.size());
  }
  EXPECT_GT(rendered, kMutations / 20);  // most mutations are faults; not all
}

}  // namespace
}  // namespace sluice
