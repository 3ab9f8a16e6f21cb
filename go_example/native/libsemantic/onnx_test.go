//go:build cgo

package libsemantic_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// artifact is a model folder that a test makes: an ONNX graph that looks tokens up in
// a table, with the tokenizer of a test model. The vector of token i is all float(i % 5).
type artifact struct {
	modelType string
	vocab     int // rows of the table
	says      int // vocab_size in config.json; 0: vocab
	width     int
	int8      bool
	dims      []int // smaller dimensions that config.json allows
}

func (a artifact) write(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(modelPath(t, "bert-embed-mean"), name))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, folder, name, data)
	}
	if a.says == 0 {
		a.says = a.vocab
	}
	config := map[string]any{
		"model_type": a.modelType, "architectures": []string{"AnyModel"},
		"hidden_size": a.width, "vocab_size": a.says, "max_position_embeddings": 128,
	}
	if len(a.dims) > 0 {
		config["matryoshka_dims"] = a.dims
	}
	writeJSON(t, folder, "config.json", config)
	writeFile(t, folder, "model.onnx", a.graph())
	return folder
}

// variant is a test model with other entries in config.json.
func variant(t *testing.T, name string, changes map[string]any) string {
	t.Helper()
	folder, original := t.TempDir(), modelPath(t, name)
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		if err := os.Symlink(filepath.Join(original, file), filepath.Join(folder, file)); err != nil {
			t.Fatal(err)
		}
	}
	var config map[string]any
	readJSON(t, filepath.Join(original, "config.json"), &config)
	for key, value := range changes {
		config[key] = value
	}
	writeJSON(t, folder, "config.json", config)
	return folder
}

func writeJSON(t *testing.T, folder, name string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, folder, name, data)
}

func writeFile(t *testing.T, folder, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// graph is a ModelProto. The numbers of the fields are those of onnx.proto.
func (a artifact) graph() []byte {
	const float, int8Type, int64Type = 1, 3, 7
	table := message{}.number(1, uint64(a.vocab)).number(1, uint64(a.width))
	if a.int8 {
		data := make([]byte, a.vocab*a.width)
		for i := range data {
			data[i] = byte(i / a.width % 5)
		}
		table = table.number(2, int8Type).text(8, "table").text(9, string(data))
	} else {
		data := make([]byte, 0, 4*a.vocab*a.width)
		for i := range a.vocab * a.width {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i/a.width%5)))
		}
		table = table.number(2, float).text(8, "table").text(9, string(data))
	}
	looked := "last_hidden_state"
	if a.int8 {
		looked = "looked"
	}
	lookup := message{}.text(1, "table").text(1, "input_ids").text(2, looked).text(4, "Gather")
	graph := message{}.message(1, lookup)
	if a.int8 {
		to := message{}.text(1, "to").number(3, float).number(20, 2)
		cast := message{}.text(1, looked).text(2, "last_hidden_state").text(4, "Cast").message(5, to)
		graph = graph.message(1, cast)
	}
	graph = graph.text(2, "lookup").message(5, table).
		message(11, value("input_ids", int64Type, "batch", "tokens")).
		message(12, value("last_hidden_state", float, "batch", "tokens", uint64(a.width)))
	return message{}.number(1, 8).message(7, graph).message(8, message{}.text(1, "").number(2, 17))
}

// value is a ValueInfoProto; dimensions are names or numbers.
func value(name string, elem uint64, dimensions ...any) message {
	shape := message{}
	for _, d := range dimensions {
		if n, ok := d.(uint64); ok {
			shape = shape.message(1, message{}.number(1, n))
		} else {
			shape = shape.message(1, message{}.text(2, d.(string)))
		}
	}
	tensor := message{}.number(1, elem).message(2, shape)
	return message{}.text(1, name).message(2, message{}.message(1, tensor))
}

// message is an encoded protobuf message.
type message []byte

func (m message) number(field, n uint64) message {
	return binary.AppendUvarint(binary.AppendUvarint(m, field<<3), n)
}

func (m message) text(field uint64, s string) message {
	m = binary.AppendUvarint(binary.AppendUvarint(m, field<<3|2), uint64(len(s)))
	return append(m, s...)
}

func (m message) message(field uint64, inner message) message { return m.text(field, string(inner)) }
