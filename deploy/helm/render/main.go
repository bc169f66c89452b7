// Renders a chart by Go's text/template, as helm does, with as many of helm's functions as the chart of this
// repository uses. A template that uses another one fails to parse.
//
//	go run main.go CHART-FOLDER CONTEXT.json
//
// CONTEXT.json holds Release, Values and Chart, as templates see them. It writes the templates' names and
// what each became, as JSON. No dependencies but Go 1.19's library.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"text/template"
)

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: main.go CHART-FOLDER CONTEXT.json"))
	}
	rendered, err := render(os.Args[1], os.Args[2])
	if err != nil {
		fail(err)
	}
	out, err := json.Marshal(rendered)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(out))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func render(chart, contextFile string) (map[string]string, error) {
	text, err := os.ReadFile(contextFile)
	if err != nil {
		return nil, err
	}
	context := map[string]any{}
	if err := json.Unmarshal(text, &context); err != nil {
		return nil, fmt.Errorf("%s: %w", contextFile, err)
	}
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return nil, err
	}
	// Stricter than helm, which prints nothing for a value that is not there.
	all := template.New("").Option("missingkey=error")
	all.Funcs(functions(all))
	base := filepath.Base(chart) + "/templates"
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if _, err := all.New(base + "/" + filepath.Base(file)).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	rendered := map[string]string{}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "_") {
			continue
		}
		name := base + "/" + filepath.Base(file)
		context["Template"] = map[string]any{"Name": name, "BasePath": base}
		var out bytes.Buffer
		if err := all.ExecuteTemplate(&out, name, context); err != nil {
			return nil, err
		}
		rendered[filepath.Base(file)] = out.String()
	}
	return rendered, nil
}

// Arguments stand as in Sprig: what is piped comes last.
func functions(all *template.Template) template.FuncMap {
	indent := func(spaces int, text string) string {
		pad := strings.Repeat(" ", spaces)
		return pad + strings.ReplaceAll(text, "\n", "\n"+pad)
	}
	return template.FuncMap{
		"include": func(name string, context any) (string, error) {
			var out bytes.Buffer
			err := all.ExecuteTemplate(&out, name, context)
			return out.String(), err
		},
		"required": func(message string, value any) (any, error) {
			if value == nil || value == "" {
				return nil, errors.New(message)
			}
			return value, nil
		},
		"default": func(otherwise, value any) any {
			if isEmpty(value) {
				return otherwise
			}
			return value
		},
		"quote":      func(value any) string { return strconv.Quote(fmt.Sprint(value)) },
		"toYaml":     func(value any) string { return strings.TrimSuffix(yaml(value, ""), "\n") },
		"nindent":    func(spaces int, text string) string { return "\n" + indent(spaces, text) },
		"upper":      strings.ToUpper,
		"replace":    func(old, by, text string) string { return strings.ReplaceAll(text, old, by) },
		"contains":   func(part, text string) bool { return strings.Contains(text, part) },
		"trimSuffix": func(end, text string) string { return strings.TrimSuffix(text, end) },
		"trunc": func(length int, text string) string {
			if len(text) > length {
				return text[:length]
			}
			return text
		},
		"sha256sum": func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
		"list":      func(items ...any) []any { return items },
		"append":    func(list []any, item any) []any { return append(append([]any{}, list...), item) },
		"join": func(between string, list []any) string {
			texts := make([]string, len(list))
			for i, item := range list {
				texts[i] = fmt.Sprint(item)
			}
			return strings.Join(texts, between)
		},
		"int": func(value any) (int, error) {
			// A number of JSON, as helm has it, too.
			number, ok := value.(float64)
			if !ok {
				return 0, fmt.Errorf("int: %v is no number", value)
			}
			return int(number), nil
		},
		"until": func(count int) []int {
			numbers := make([]int, count)
			for i := range numbers {
				numbers[i] = i
			}
			return numbers
		},
	}
}

func isEmpty(value any) bool {
	if value == nil {
		return true
	}
	of := reflect.ValueOf(value)
	switch of.Kind() {
	case reflect.Map, reflect.Slice:
		return of.Len() == 0
	default:
		return of.IsZero()
	}
}

// Blocks of YAML, with keys in order. Texts are quoted, which helm does where it must.
func yaml(value any, pad string) string {
	switch value := value.(type) {
	case map[string]any:
		if len(value) == 0 {
			return "{}\n"
		}
		keys := make([]string, 0, len(value))
		for key := range value {
			keys = append(keys, key)
		}
		sort.Strings(keys)
		out := ""
		for i, key := range keys {
			if i > 0 {
				out += pad
			}
			out += strconv.Quote(key) + ":" + below(value[key], pad)
		}
		return out
	case []any:
		if len(value) == 0 {
			return "[]\n"
		}
		out := ""
		for i, item := range value {
			if i > 0 {
				out += pad
			}
			out += "- " + yaml(item, pad+"  ")
		}
		return out
	default:
		text, err := json.Marshal(value)
		if err != nil {
			// What JSON gave can be written as JSON.
			panic(err)
		}
		return string(text) + "\n"
	}
}

// What stands behind a key: in its line, or in lines of its own.
func below(value any, pad string) string {
	switch of := value.(type) {
	case map[string]any:
		if len(of) > 0 {
			return "\n" + pad + "  " + yaml(value, pad+"  ")
		}
	case []any:
		if len(of) > 0 {
			return "\n" + pad + "  " + yaml(value, pad+"  ")
		}
	}
	return " " + yaml(value, pad)
}
