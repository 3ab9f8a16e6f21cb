// Go_peer embeds texts through a public Go binding of ONNX Runtime, as a Go program
// would that does not use libsemantic. The binding has no tokenizer: the texts are
// tokens already. It answers requests on standard input; see package generate.
//
//	go_peer -library libonnxruntime.so -model model.onnx -texts texts.json -inputs a,b -output c
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/libsemantic/libsemantic/go_example/cmd/load/generate"
)

// An entry is a text as a list of tokens.
type entry struct {
	IDs     []int64 `json:"ids"`
	TypeIDs []int64 `json:"type_ids"`
}

type peer struct {
	model    string
	inputs   []string
	output   string
	entries  []entry
	sessions map[generate.Setting]*ort.DynamicAdvancedSession
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("go_peer: ")
	library := flag.String("library", "", "`file` of ONNX Runtime's shared library")
	texts := flag.String("texts", "", "JSON `file` with the tokens of the texts")
	inputs := flag.String("inputs", "", "`names` of the graph's inputs, joined by commas")
	p := peer{sessions: map[generate.Setting]*ort.DynamicAdvancedSession{}}
	flag.StringVar(&p.model, "model", "", "ONNX `file`")
	flag.StringVar(&p.output, "output", "", "`name` of the graph's output")
	flag.Parse()
	p.inputs = strings.Split(*inputs, ",")
	if err := serve(&p, *library, *texts); err != nil {
		log.Fatal(err)
	}
}

func serve(p *peer, library, texts string) error {
	data, err := os.ReadFile(texts)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &p.entries); err != nil {
		return fmt.Errorf("%s: %w", texts, err)
	}
	ort.SetSharedLibraryPath(library)
	if err := ort.InitializeEnvironment(); err != nil {
		return err
	}
	if err := ort.DisableTelemetry(); err != nil {
		return err
	}
	about := map[string]string{"onnxruntime": ort.GetVersion()}
	return generate.Serve(os.Stdin, os.Stdout, generate.Hello{About: about}, p.answer)
}

func (p *peer) answer(request generate.Request) (generate.Report, error) {
	session, err := p.session(request.Setting)
	if err != nil {
		return generate.Report{}, err
	}
	if request.Vectors {
		var report generate.Report
		for _, text := range request.Order {
			vector, err := p.embed(session, p.entries[text])
			if err != nil {
				return report, err
			}
			report.Vectors = append(report.Vectors, vector)
		}
		return report, nil
	}
	return generate.Run(context.Background(), request, len(p.entries),
		func(_ context.Context, text int) error {
			_, err := p.embed(session, p.entries[text])
			return err
		})
}

// session opens the model once for each setting.
func (p *peer) session(setting generate.Setting) (*ort.DynamicAdvancedSession, error) {
	if session, ok := p.sessions[setting]; ok {
		return session, nil
	}
	options, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	defer options.Destroy()
	if err := options.SetIntraOpNumThreads(setting.Threads); err != nil {
		return nil, err
	}
	spin := map[bool]string{true: "1", false: "0"}[setting.Spin]
	if err := options.AddSessionConfigEntry("session.intra_op.allow_spinning", spin); err != nil {
		return nil, err
	}
	session, err := ort.NewDynamicAdvancedSession(p.model, p.inputs, []string{p.output}, options)
	if err != nil {
		return nil, err
	}
	p.sessions[setting] = session
	return session, nil
}

// embed runs the model on one text and returns the mean of its token states at unit length.
func (p *peer) embed(session *ort.DynamicAdvancedSession, text entry) ([]float32, error) {
	shape := ort.NewShape(1, int64(len(text.IDs)))
	mask := make([]int64, len(text.IDs))
	for i := range mask {
		mask[i] = 1
	}
	values := map[string][]int64{
		"input_ids": text.IDs, "token_type_ids": text.TypeIDs, "attention_mask": mask,
	}
	inputs := make([]ort.Value, len(p.inputs))
	for i, name := range p.inputs {
		tensor, err := ort.NewTensor(shape, values[name])
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", name, err)
		}
		defer tensor.Destroy()
		inputs[i] = tensor
	}
	outputs := []ort.Value{nil} // made by the run
	if err := session.Run(inputs, outputs); err != nil {
		return nil, err
	}
	defer outputs[0].Destroy()
	states, ok := outputs[0].(*ort.Tensor[float32])
	if !ok {
		return nil, fmt.Errorf("output %s is %T", p.output, outputs[0])
	}
	return pooled(states.GetData(), len(text.IDs)), nil
}

func pooled(states []float32, tokens int) []float32 {
	vector := make([]float32, len(states)/tokens)
	for i, value := range states {
		vector[i%len(vector)] += value
	}
	var squares float64
	for _, value := range vector {
		squares += float64(value) * float64(value)
	}
	for i := range vector {
		vector[i] /= float32(math.Sqrt(squares))
	}
	return vector
}
