//go:build cgo

package semantic
import ("testing";"context";"time";"fmt")
func TestZZ(t *testing.T){
	rt := open(t, Options{})
	model := load(t, rt, "bert-seq", LoadOptions{})
	texts := slowTexts()[:10_000]
	done:=make(chan int); b:=time.Now()
	go func(){ _,err:=model.Classify(context.Background(),texts,RunOptions{}); fmt.Println("call",time.Since(b),err); close(done)}()
	for { select{case <-done: return; default:}
	 x:=time.Now(); s,_:=rt.Stats(); d:=time.Since(x)
	 for _,c:=range s.Calls{ fmt.Println(time.Since(b), "stats took",d, "inflight",c.InFlight,"batches",c.Batches,"completed",c.Completed)}
	 if len(s.Calls)==0 {fmt.Println(time.Since(b),"stats took",d,"none")}
	 time.Sleep(100*time.Millisecond)
	}
}
